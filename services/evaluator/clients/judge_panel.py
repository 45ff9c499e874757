"""Who says what no arithmetic can: whether an answer refuses, and which of two answers is better."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from schemas.gate import JudgeRule
from services.evaluator.clients.judge import (
    ChatJudge,
    Exchange,
    GuardClassifier,
    JudgeClassifier,
    PhraseClassifier,
    RefusalClassifier,
    ask_control_pairs,
    compare_answers,
    is_guard,
)
from services.evaluator.decide.grading import Judged, Sides, with_refusals
from services.evaluator.decide.plan import HOLDOUT
from services.evaluator.scoring.order import PartScores
from services.evaluator.scoring.rows import TaskRow, read_prompts, read_tasks
from services.evaluator.settings import Settings

SAFETY = "safety:"

Paths = Mapping[str, Path]
"""Path of the file of each part."""


class JudgePanel:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._of_harmful: RefusalClassifier = PhraseClassifier()
        self._of_benign: RefusalClassifier = self._of_harmful
        url, model = settings.refusal_judge_url, settings.refusal_judge_model
        if url and model and is_guard(model, settings.refusal_judge_shape):
            self._of_harmful = GuardClassifier(self._judge(url, model), model)
        elif url and model:
            self._of_harmful = self._of_benign = JudgeClassifier(self._judge(url, model), model)

    @property
    def name(self) -> str:
        """Name of the classifiers, which is part of a baseline's identity."""
        return ", ".join(dict.fromkeys((self._of_harmful.name, self._of_benign.name)))

    async def classified(
        self, parts: Sequence[PartScores], paths: Paths, *, benign: Collection[str]
    ) -> list[PartScores]:
        """Return the same parts, with items of safety suites marked as refusals or not. `benign` names parts."""
        return [
            await self._classified(part, paths[part.part], is_benign=part.part in benign)
            if part.part.startswith(SAFETY)
            else part
            for part in parts
        ]

    async def judge(self, rule: JudgeRule | None, paths: Paths, *, base: Sides, new: Sides) -> Judged:
        """Judge the holdout's answers in both orders, if the gate asks for it and the operator allows the judge."""
        if rule is None:
            return Judged()
        if rule.url not in self._settings.judge_urls:
            allowed = ", ".join(self._settings.judge_urls) or "none"
            return Judged(problem=f"judge {rule.url} is not one that the operator allows: {allowed}")
        if HOLDOUT not in base or HOLDOUT not in new:
            return Judged(problem="there are no holdout rows to judge")
        rows = _chosen(await asyncio.to_thread(read_tasks, paths[HOLDOUT]), self._settings.judge_pairs)
        judge = self._judge(rule.url, rule.model)
        try:
            pairs = await compare_answers(judge, rows, _answers(base[HOLDOUT]), _answers(new[HOLDOUT]))
            return Judged(tuple(pairs), tuple(await ask_control_pairs(judge, rows)), expected=len(rows))
        finally:
            await judge.close()

    async def _classified(self, part: PartScores, path: Path, *, is_benign: bool) -> PartScores:
        rows = {row.key: row for row in await asyncio.to_thread(read_prompts, path)}
        exchanges = [
            Exchange(rows[item.key].prompt, item.answer or "", is_cut=item.is_cut) for item in part.items
        ]
        classifier = self._of_benign if is_benign else self._of_harmful
        categories = {key: row.category for key, row in rows.items()}
        return with_refusals(part, await classifier.classify(exchanges), categories)

    def _judge(self, url: str, model: str) -> ChatJudge:
        return ChatJudge(
            url,
            model,
            api_key=self._settings.judge_key(url),
            timeout_seconds=self._settings.judge_timeout.total_seconds(),
            attempts=self._settings.judge_attempts,
            concurrency=self._settings.judge_concurrency,
        )


def _chosen(rows: Sequence[TaskRow], limit: int) -> list[TaskRow]:
    """Choose the same rows every time, spread over the file: by the hash in their key."""
    return sorted(rows, key=lambda row: row.key.partition("-")[2])[:limit]


def _answers(part: PartScores) -> dict[str, str]:
    return {item.key: item.answer for item in part.items if item.answer is not None}
