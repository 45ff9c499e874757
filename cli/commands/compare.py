"""Jobs beside each other: what they came to, and the settings that differ. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from cli.commands.numbers import setting, written

Job = Mapping[str, Any]
Row = tuple[str, ...]
NONE = "–"


def compared(jobs: Sequence[Job], newest_checkpoints: Sequence[Mapping[str, Any] | None]) -> list[Row]:
    """Return rows of a name and a value of each job: results, then the settings that are not equal in all."""
    results = [_results(*each) for each in zip(jobs, newest_checkpoints, strict=True)]
    settings = [_settings(job) for job in jobs]
    return [
        *((name, *(each[name] for each in results)) for name in results[0]),
        *(row for row in _rows(settings) if len({*row[1:]}) > 1),
    ]


def num_equal(jobs: Sequence[Job]) -> int:
    """Count the settings that are equal in all."""
    return sum(len({*row[1:]}) == 1 for row in _rows([_settings(job) for job in jobs]))


def why_not_comparable(jobs: Sequence[Job]) -> str:
    """Say why the losses of the jobs are of different things; empty where they are of one."""
    if len({job["model"] for job in jobs}) > 1:
        return "their losses are not comparable: they start from other models"
    if len({job["retune"]["dataset_version"] for job in jobs}) > 1:
        return "their losses are not comparable: other data"
    return ""


def _results(job: Job, checkpoint: Mapping[str, Any] | None) -> dict[str, str]:
    ours, metrics = job["retune"], checkpoint["metrics"] if checkpoint else {}
    loss = metrics.get("full_valid_loss")
    return {
        "state": ours["state"],
        "gate": ours["gate"]["status"],
        "fine-tuned model": job["fine_tuned_model"] or NONE,
        "steps": f"{ours['last_step']} of {ours['num_steps'] or NONE}",
        "trained tokens": NONE if job["trained_tokens"] is None else f"{job['trained_tokens']:,}",
        "train loss": _written("train_loss", metrics),
        "validation loss": _written("valid_loss" if loss is None else "full_valid_loss", metrics),
        "perplexity": _written("perplexity", metrics),
        "cost USD": ours["cost_usd"],
    }


def _written(name: str, metrics: Mapping[str, Any]) -> str:
    return written(name, metrics.get(name)) or NONE


def _settings(job: Job) -> dict[str, str]:
    ours = job["retune"]
    named = {
        "model": job["model"],
        "training file": job["training_file"],
        "validation file": job["validation_file"],
    }
    return {
        **{name: _text(value) for name, value in named.items()},
        "dataset version": _text(ours["dataset_version"] and ours["dataset_version"][:12]),
        **_flat("recipe", ours["recipe"]),
    }


def _flat(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {name: _text(value)}
    return {key: text for own, inner in value.items() for key, text in _flat(f"{name}.{own}", inner).items()}


def _text(value: object) -> str:
    return setting(value) or NONE


def _rows(settings: Sequence[Mapping[str, str]]) -> list[Row]:
    names = dict.fromkeys(name for each in settings for name in each)
    return [(name, *(each.get(name, NONE) for each in settings)) for name in names]
