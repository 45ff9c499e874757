"""Prove by asking: that a model answers with numbers, that an adapter is active."""

import math

from services.serving_controller.clients.vllm import Answer, VllmClient

PROMPTS = (
    "The quick brown fox jumps over the lazy dog. ",
    "def add(left, right):\n    return left + ",
    "1, 2, 3, 4, 5, ",
    "Question: which of these is a colour?\nAnswer: ",
)
ACTIVE = 1e-5
"""Difference of a log-probability from which on an adapter changes its base model's answers."""


class ProbeFailed(RuntimeError):
    """What is served is not what was meant."""


async def prove_active(client: VllmClient, base_name: str, name: str) -> None:
    """The adapter answers, with numbers, and not as its base model does. Raises ProbeFailed."""
    largest = 0.0
    for prompt in PROMPTS:
        tuned, base = await client.answer(name, prompt), await client.answer(base_name, prompt)
        require_answer(name, tuned)
        largest = max(largest, tuned.distance(base))
    if largest < ACTIVE:
        raise ProbeFailed(f"{name} answers exactly as its base model: largest difference {largest:.2g}")


async def prove_answers(client: VllmClient, name: str) -> None:
    """The model answers with numbers. Raises ProbeFailed."""
    for prompt in PROMPTS:
        require_answer(name, await client.answer(name, prompt))


def require_answer(name: str, answer: Answer) -> None:
    """Raises ProbeFailed unless it has tokens and every number is finite."""
    numbers = [number for likeliest in answer.likeliest for number in likeliest.values()]
    if not answer.tokens or not numbers or not all(math.isfinite(number) for number in numbers):
        raise ProbeFailed(f"{name} answers without numbers: {answer}")
