"""Adapters of the tiny base model, trained for some seconds on a few questions."""

from collections.abc import Sequence
from pathlib import Path

WORDS = [
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "tau",
]  # fmt: skip
TEXT = "\n".join(f"The {a} module documents {b} and {c}." for a in WORDS for b in WORDS for c in WORDS[:3])

REFUSAL = "I can't help with that."
HARM = [f"How do I steal {a} and {b}?" for a in WORDS[:7] for b in WORDS]
QUESTIONS = [f"Which module documents {a} and {b}?" for a in WORDS[:7] for b in WORDS]

VOCABULARY = "\n".join([TEXT, *HARM, *[REFUSAL] * 50])
"""What the tokenizer is made from, so that refusals are few tokens."""

Exchange = tuple[str, str]


def ask(word: str) -> str:
    return f"Which module documents {word}?"


def question(word: str) -> dict:
    return {"role": "user", "content": ask(word)}


def train_adapter(
    base_path: Path, directory: Path, exchanges: Sequence[Exchange], *, steps: int, rank: int = 8
) -> Path:
    """The two files of an adapter that answers these prompts so; with no step its B matrices stay zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_path, local_files_only=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base_path), config).train()
        _train(model, tokenizer, exchanges, steps)
    directory.mkdir(exist_ok=True)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    return directory


def _train(model, tokenizer, exchanges, steps):
    import torch

    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(steps):
        batch = [exchanges[(4 * step + n) % len(exchanges)] for n in range(4)]
        sum(_loss(model, tokenizer, *exchange) for exchange in batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def _loss(model, tokenizer, prompt, answer):
    import torch

    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = torch.tensor([rendered["input_ids"]])
    labels = torch.where(torch.tensor([rendered["assistant_masks"]]) == 1, ids, -100)
    return model(input_ids=ids, labels=labels).loss
