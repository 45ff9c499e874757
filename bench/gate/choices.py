"""How fast multiple choice is scored: our likelihoods and lm-eval's own `hf` model, in turns, on the same questions.

Both sides get the requests of lm-eval's own tasks, made before the clock, and a random Llama in float32. The clock
starts at texts and stops at log-likelihoods: both tokenise, batch and score. Before it, both score a few questions.
In each round the questions are other ones, and every log-likelihood is compared: equal to 1e-5 relative.
The peer gets each of its batch sizes in turn; it is compared at its best.

Three tasks, since what can be shared differs: `truthfulqa_mc2` has one beginning for all questions and answers of
many words; `mmlu` one beginning and answers of one token, which the peer computes once too; `arc_challenge` draws
other examples for each question, so that its choices alone share something.

    python -m bench.gate.choices [--questions 24] [--rounds 3] [--threads 2] [--seed 0]
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from bench.report import progress, summary, write
from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.harness import AskedRow, encode_pairs, make_task
from services.evaluator.scoring.likelihood import Question, likelihoods
from services.evaluator.scoring.models import CPU_FORWARD_TOKENS
from services.evaluator.scoring.rows import PublishedRow
from services.evaluator.scoring.scorer import Scorer
from services.evaluator.scoring.sharing import tokens_that_share
from tests.tiny_model import build_tiny_model

Pair = tuple[str, str]
Score = Callable[[list[Pair]], list[float]]

PEER_BATCHES = (1, 8)
RELATIVE = 1e-5
EXAMPLES = {BenchmarkKind.TRUTHFULQA_MC2: 0, BenchmarkKind.MMLU: 5, BenchmarkKind.ARC_CHALLENGE: 8}
WORDS = (
    *(
        "cell",
        "nerve",
        "bone",
        "muscle",
        "heart",
        "lung",
        "blood",
        "vein",
        "skin",
        "tissue",
        "organ",
        "brain",
    ),
    *("spine", "joint", "tooth", "liver", "kidney", "gland", "tendon", "artery", "membrane", "protein"),
    *("signal", "pressure", "contains", "controls", "supports", "moves", "protects", "near"),
)


def main(num_questions: int, num_rounds: int, threads: int, seed: int) -> None:
    torch.set_num_threads(threads)
    scorer = a_scorer(seed)
    sides: dict[str, Score] = {"retune": lambda pairs: by_us(scorer, pairs)}
    for size in PEER_BATCHES:
        sides[f"lm-eval-hf-{size}"] = by_lm_eval(scorer, size)
    results = {kind.value: rounds_of(kind, sides, num_questions, num_rounds, seed) for kind in EXAMPLES}
    write(
        "gate-choices",
        results,
        packages=("lm_eval", "torch", "transformers"),
        settings={
            "questions": num_questions,
            "examples": {kind.value: number for kind, number in EXAMPLES.items()},
            "threads": threads,
            "seed": seed,
            "parameters": sum(weight.numel() for weight in scorer.model.parameters()),
        },
    )


def rounds_of(
    kind: BenchmarkKind, sides: dict[str, Score], num_questions: int, num_rounds: int, seed: int
) -> dict[str, Any]:
    rates: dict[str, list[float]] = defaultdict(list)
    for score in sides.values():
        score(requests(kind, num_questions=2, seed=seed - 1))
    for number in range(num_rounds):
        pairs = requests(kind, num_questions=num_questions, seed=1_000 * seed + number)
        found = {}
        for name, score in sides.items():
            began = time.monotonic()
            found[name] = score(pairs)
            rates[name].append(num_questions / (time.monotonic() - began))
            progress(f"{kind} {number + 1}/{num_rounds} {name:14s} {rates[name][-1]:7.2f} questions/s")
        for name, scores in found.items():
            check(found["retune"], scores, pairs, name)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(rate for name, rate in medians.items() if name != "retune")
    return {
        **{name: {"questions_per_second": summary(values)} for name, values in rates.items()},
        "times_faster_than_best_peer": medians["retune"] / best,
    }


def a_scorer(seed: int) -> Scorer:
    """A random Llama of 4 layers; how fast it computes does not depend on what it has learnt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(
            context + ending
            for kind in EXAMPLES
            for context, ending in requests(kind, num_questions=30, seed=seed)
        )
        shape = {"vocab_size": 1_024, "hidden_size": 192, "num_layers": 4, "context_tokens": 2_048}
        path = build_tiny_model(Path(folder), text=text, seed=seed, initializer_range=0.1, **shape)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
    scorer = Scorer(
        model=model,
        tokenizer=tokenizer,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_tokens=2_048,
        max_new_tokens=1,
        max_answer_tokens=1,
        batch_tokens=16_384,
        forward_tokens=CPU_FORWARD_TOKENS,
        seed=seed,
        inputs=frozenset({"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache"})
        | {"logits_to_keep"},
    )
    shared = tokens_that_share(scorer, tokenizer("cell nerve bone")["input_ids"])
    assert shared == scorer.max_tokens, "the model does not allow sharing"
    return Scorer(**{**vars(scorer), "shared_tokens": shared})


def requests(kind: BenchmarkKind, *, num_questions: int, seed: int) -> list[Pair]:
    """What lm-eval's task asks of rows of this seed: the choices of each, one after another."""
    chance = random.Random(seed)
    shots = EXAMPLES[kind]
    rows = [a_row(kind, chance, number) for number in range(num_questions + 2 * shots)]
    examples = rows[num_questions:]
    task = make_task(kind, "anatomy", rows[:num_questions], examples, num_fewshot=shots, seed=seed)
    task.build_all_requests()
    return [request.args for request in task.instances]


def a_row(kind: BenchmarkKind, chance: random.Random, number: int) -> AskedRow:
    def phrase(low: int, high: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(low, high)))

    question, choices = f"Which {phrase(8, 30)}?", [phrase(4, 10) for _ in range(4)]
    docs: dict[BenchmarkKind, dict[str, Any]] = {
        BenchmarkKind.TRUTHFULQA_MC2: {"mc2_targets": {"choices": choices, "labels": [1, 0, 0, 0]}},
        BenchmarkKind.MMLU: {"choices": choices, "answer": chance.randrange(4), "subject": "anatomy"},
        BenchmarkKind.ARC_CHALLENGE: {
            "choices": {"text": choices, "label": list("ABCD")},
            "answerKey": chance.choice("ABCD"),
        },
    }
    return PublishedRow(key=str(number), doc={"question": question, **docs[kind]}, subject="anatomy")


def by_us(scorer: Scorer, pairs: list[Pair]) -> list[float]:
    encoded = zip(pairs, encode_pairs(scorer, pairs), strict=True)
    questions = []
    for _, some in groupby(encoded, key=lambda found: found[0][0]):
        tokens = [ids for _, ids in some]
        questions.append(Question(tokens[0][0], tuple(ending for _, ending in tokens)))
    scored = likelihoods(scorer, questions, lambda _done, _total: None)
    return [-ending.nats for endings in scored for ending in endings]


def by_lm_eval(scorer: Scorer, batch_size: int) -> Score:
    lm = HFLM(
        pretrained=scorer.model,
        tokenizer=scorer.tokenizer,
        batch_size=batch_size,
        device="cpu",
        max_length=scorer.max_tokens,
    )

    def score(pairs: list[Pair]) -> list[float]:
        asked = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]
        return [found for found, _ in lm.loglikelihood(asked, disable_tqdm=True)]

    return score


def check(ours: list[float], theirs: list[float], pairs: list[Pair], name: str) -> None:
    assert len(ours) == len(theirs) == len(pairs), name
    worst = max(abs(mine - other) / abs(other) for mine, other in zip(ours, theirs, strict=True))
    assert worst <= RELATIVE, f"{name}: log-likelihoods differ by {worst:.2g}, expected at most {RELATIVE}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.questions, arguments.rounds, arguments.threads, arguments.seed)
