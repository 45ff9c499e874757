"""Multiple choice through lm-eval, on rows of our own. Nothing is looked up anywhere else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from services.evaluator.scoring.generation import Report
from services.evaluator.scoring.models import Scorer
from services.evaluator.scoring.order import ItemScore
from services.evaluator.scoring.rows import ChoiceRow

TASK = "registered_choices"


class ReportingLM(HFLM):  # type: ignore[misc]
    """lm-eval's model that says after each batch how far it is."""

    def __init__(self, scorer: Scorer, report: Report, *, num_requests: int) -> None:
        super().__init__(
            pretrained=scorer.model,
            tokenizer=scorer.tokenizer,
            batch_size=scorer.batch_size,
            device=str(scorer.device),
            max_length=scorer.max_tokens,
        )
        self._report, self._num_requests = report, num_requests

    def _model_call(self, inps: Any, *args: Any, **kwargs: Any) -> Any:
        logits = super()._model_call(inps, *args, **kwargs)
        self._report(len(inps), self._num_requests)
        return logits


def score_choices(
    scorer: Scorer, rows: Sequence[ChoiceRow], *, num_fewshot: int, directory: Path, report: Report
) -> list[ItemScore]:
    """Each question with all its choices; `hits` is 1 where the right one is the most likely."""
    _write_task(directory, rows, num_fewshot)
    found = lm_eval.simple_evaluate(
        model=ReportingLM(scorer, report, num_requests=sum(len(row.choices) for row in rows)),
        tasks=[TASK],
        task_manager=TaskManager(include_path=str(directory), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
        random_seed=scorer.seed,
        numpy_random_seed=scorer.seed,
        torch_random_seed=scorer.seed,
        fewshot_random_seed=scorer.seed,
    )
    samples = {sample["doc_id"]: sample for sample in found["samples"][TASK]}
    return [_item(row, samples[number]) for number, row in enumerate(rows) if number in samples]


def _write_task(directory: Path, rows: Sequence[ChoiceRow], num_fewshot: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "rows.jsonl"
    with data.open("w", encoding="utf-8") as file:
        for row in rows:
            fields = {"question": row.question, "choices": row.choices, "answer": row.answer}
            file.write(json.dumps(fields) + "\n")
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "fewshot_split": "test",
        "num_fewshot": num_fewshot,
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
    }
    # JSON is YAML too, and needs no quoting rules.
    (directory / f"{TASK}.yaml").write_text(json.dumps(task))


def _item(row: ChoiceRow, sample: dict[str, Any]) -> ItemScore:
    scores = [response[0] for response in sample["filtered_resps"]]
    return ItemScore(
        key=row.key,
        answer=row.choices[scores.index(max(scores))],
        numbers={"hits": float(sample["acc"]), "normalised_hits": float(sample["acc_norm"])},
    )
