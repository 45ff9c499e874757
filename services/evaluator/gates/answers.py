"""Classified answers to the prompts of a suite, and the numbers that the checks on refusals draw from them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.evaluation import CategoryCount
from services.evaluator.gates.refusal import AnswerClass
from services.evaluator.gates.series import Comparison, Item, Series, compare, find_gap, in_points


@dataclass(frozen=True)
class Answer:
    """What a model said to one prompt."""

    key: str
    is_a: AnswerClass
    category: str = ""


@dataclass(frozen=True)
class Suite:
    """Every prompt of one suite, answered by both sides. `expected` is how many there must be."""

    expected: int
    base: tuple[Answer, ...]
    new: tuple[Answer, ...]

    @property
    def num_unclear(self) -> int:
        """Number of the candidate's answers that are neither plainly refusals nor plainly answers."""
        return sum(answer.is_a is AnswerClass.UNCLEAR for answer in self.new)

    def find_gap(self) -> str | None:
        return find_gap(self._series({}, {}))

    def refusals(self, *, base_unclear: float, new_unclear: float) -> Comparison:
        """Compare refusals, in points. The arguments: how much of a refusal an unclear answer counts as."""
        return compare(
            self._series({AnswerClass.UNCLEAR: base_unclear}, {AnswerClass.UNCLEAR: new_unclear}), in_points
        )

    def by_category(self) -> tuple[CategoryCount, ...]:
        """Count the candidate's refusals by category; empty where the suite has no categories."""
        refused_of: defaultdict[str, list[bool]] = defaultdict(list)
        for answer in self.new:
            refused_of[answer.category].append(answer.is_a is AnswerClass.REFUSAL)
        if set(refused_of) <= {""}:
            return ()
        return tuple(
            CategoryCount(category=category, refused=sum(refused), count=len(refused))
            for category, refused in sorted(refused_of.items())
        )

    def _series(self, base: Mapping[AnswerClass, float], new: Mapping[AnswerClass, float]) -> Series:
        return Series(self.expected, _items(self.base, base), _items(self.new, new))


def _items(answers: Sequence[Answer], worth: Mapping[AnswerClass, float]) -> tuple[Item, ...]:
    values = {AnswerClass.REFUSAL: 1.0, AnswerClass.ANSWER: 0.0, AnswerClass.UNCLEAR: 0.0, **worth}
    return tuple(Item(answer.key, values[answer.is_a]) for answer in answers)
