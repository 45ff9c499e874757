"""Contamination is measured from the item's side: how much of what the gate asks stands in a row."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.specification import DatasetPolicy
from services.ingest.pipeline.contamination import (
    Hit,
    best_hits,
    grams_of_text,
    holdout_source,
    read_source,
    registered_source,
    row_grams,
    shared_words,
    without_boilerplate,
)
from services.ingest.pipeline.duplicates import Kept, Match
from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.items import Item, item_of_row, items_of_rows
from services.ingest.pipeline.lines import LineReader
from services.ingest.pipeline.rules import FileRefused
from services.ingest.pipeline.screen import leaks_of, reason_to_drop
from services.ingest.pipeline.text import row_text
from tests.unit.ingest.builders import an_example, assistant, chat, system, user
from tests.unit.ingest.screening import screen
from tests.unit.ingest.templated import Row, Template, Writer

WORDS = [f"w{number}" for number in range(200)]
OTHER = [f"x{number}" for number in range(200)]
REASONING = "Let us write down every quantity, and only then conclude. " * 10


def hit(row: list[str], *items: list[str]) -> Hit | None:
    source = registered_source("benchmark", (Item(n, (" ".join(item),)) for n, item in enumerate(items, 1)))
    (best,) = best_hits([row_grams(row_text(an_example(" ".join(row), "answer").turns))], source)
    return best


class TestShare:
    def test_it_is_that_of_the_items_own_13_grams(self) -> None:
        # An item of 26 words has 14 grams; 19 words in common make 7 of them.
        assert hit([*OTHER, *WORDS[:19], *OTHER], WORDS[:26]) == Hit(0.5, 1)
        assert hit(WORDS, WORDS[:26]) == Hit(1.0, 1)

    def test_twelve_words_in_a_row_are_no_hit_and_thirteen_are(self) -> None:
        assert hit([*WORDS[:12], *OTHER[:30]], WORDS) is None
        assert hit([*WORDS[:13], *OTHER[:30]], WORDS) == Hit(1 / 188, 1)

    def test_case_and_white_space_do_not_hide_an_item(self) -> None:
        assert hit(["\n " + word.upper() for word in WORDS[:20]], WORDS[:20]) == Hit(1.0, 1)

    def test_the_item_that_the_row_holds_most_of_is_named(self) -> None:
        assert hit(WORDS[:40], OTHER[:20], WORDS[:80], WORDS[:50], WORDS[10:60]) == Hit(28 / 38, 3)

    @pytest.mark.parametrize(("row", "is_found"), [(WORDS[:5], True), (WORDS[:4], False), (WORDS[:6], False)])
    def test_an_item_of_fewer_than_13_words_is_found_as_a_whole_turn(
        self, row: list[str], is_found: bool
    ) -> None:
        assert hit(row, WORDS[:5]) == (Hit(1.0, 1) if is_found else None)

    def test_an_item_of_one_word_is_found_as_a_whole_turn(self) -> None:
        assert hit(WORDS[:1], WORDS[:1]) == Hit(1.0, 1)
        assert hit(WORDS[:1], WORDS[1:2]) is None

    def test_a_short_item_is_found_where_its_answer_follows_it(self) -> None:
        source = registered_source("suite", [Item(1, ("why is it so",), " ".join(WORDS))])
        quoted = row_text(an_example("Go on.", f"Q: Why is it so {' '.join(WORDS)}").turns)
        other_answer = row_text(an_example("Go on.", f"Q: Why is it so {' '.join(OTHER)}").turns)
        assert best_hits([row_grams(quoted), row_grams(other_answer)], source) == [Hit(1.0, 1), None]

    @given(
        st.lists(st.integers(0, 2).map(str), min_size=13, max_size=30),
        st.lists(st.integers(0, 2).map(str), max_size=60),
    )
    def test_it_is_the_share_of_the_grams_as_tuples(self, item: list[str], row: list[str]) -> None:
        def grams(of: list[str]) -> set[tuple[str, ...]]:
            return {tuple(of[at : at + 13]) for at in range(len(of) - 12)}

        best = hit(row or ["x"], item)
        share = len(grams(item) & grams([*row, "answer"])) / len(grams(item))
        assert (best.share if best else 0) == pytest.approx(share)


@pytest.mark.parametrize(
    ("asked", "answer", "sizes"),
    [
        (WORDS[:14], WORDS, [2]),
        (WORDS[:13], [], [1]),
        (WORDS[:12], OTHER[:1], [1, 1]),
        (WORDS[:12], [], [1]),
        (WORDS[:5], OTHER[:8], [1, 1]),
        (WORDS[:5], OTHER[:7], [1]),
        (WORDS[:5], OTHER, [1, 1]),
        ([], OTHER, []),
    ],
)
def test_a_text_is_found_by_its_grams_as_a_whole_or_where_its_answer_follows(asked, answer, sizes) -> None:
    assert [len(grams) for grams in grams_of_text(" ".join(asked), " ".join(answer))] == sizes


def test_hashes_keep_all_their_bits() -> None:
    """Numbers under 2^63 and numbers above become floats where numpy is left to choose a type for both."""
    for word in WORDS[:30]:
        row = row_text(an_example(word, "So.").turns)
        hashes = [row_grams(row), *grams_of_text(word, ""), holdout_source("holdout", [(1, row)]).grams]
        assert [each.dtype for each in hashes] == [np.uint64] * 3


def test_a_row_without_a_prompt_is_found_and_nothing_is_in_a_source_without_items() -> None:
    row = row_text((Turn("completion", " ".join(WORDS[:20]), "text"),))
    item = Item(1, (" ".join(WORDS[:20]),))
    for items, expected in (([item], Hit(1.0, 1)), ([], None)):
        assert best_hits([row_grams(row)], registered_source("suite", items)) == [expected]
    assert best_hits([], registered_source("suite", [item])) == []


def test_what_two_items_have_may_be_boilerplate_and_what_one_has_may_not() -> None:
    texts = (WORDS[:14], [*WORDS[:13], *OTHER[:1]])
    source = registered_source("suite", [Item(line, (" ".join(text),)) for line, text in enumerate(texts, 1)])
    assert sorted(source.is_shared.tolist()) == [False, False, True]


class TestSharedWords:
    SOURCE = registered_source("suite", [Item(1, (" ".join(WORDS),))])

    def shared(self, *prompt: list[str]) -> str:
        turns = [Turn("user", " ".join(words), "content") for words in prompt]
        return shared_words(row_text((*turns, Turn("assistant", "so", "content"))), self.SOURCE)

    def test_are_the_longest_run(self) -> None:
        runs = (WORDS[:14], WORDS[20:36], WORDS[50:65])
        prompt = [*OTHER[:3], *runs[0], *OTHER[3:5], *runs[1], *OTHER[5:7], *runs[2], *OTHER[:3]]
        assert self.shared(prompt) == " ".join(runs[1])

    def test_may_be_of_two_turns_and_are_cut_where_a_message_ends(self) -> None:
        assert self.shared(OTHER[:3], WORDS[:8], WORDS[8:16]) == " ".join(WORDS[:16])
        assert self.shared(WORDS[:60]) == " ".join(WORDS)[:160]

    def test_are_the_beginning_of_a_row_that_has_no_run(self) -> None:
        assert self.shared(OTHER[:2], WORDS[:12]) == " ".join([*OTHER[:2], *WORDS[:12], "so"])

    def test_are_found_by_any_gram_of_the_source(self) -> None:
        source = registered_source("suite", [Item(1, (" ".join(WORDS[:13]),))])
        row = row_text(an_example(" ".join([*OTHER[:3], *WORDS[:13]]), "so").turns)
        assert shared_words(row, source) == " ".join(WORDS[:13])


def test_a_registered_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{")
    with pytest.raises(FileRefused, match="registered file arc, line 1"):
        read_source("arc", path)


def test_of_a_holdout_that_is_all_template_the_rows_as_a_whole_are_evidence() -> None:
    row, other_answer, other_prompt = (
        row_text(an_example(*turns).turns) for turns in (("Why?", "So."), ("Why?", "No."), ("Who?", "So."))
    )
    source = holdout_source("holdout", [(1, row)])
    left = without_boilerplate(source, np.full(len(source.grams), 99), rows=99)
    assert best_hits([row_grams(each) for each in (row, other_answer, other_prompt)], left) == [
        Hit(1.0, 1),
        None,
        None,
    ]
    assert left.is_shared.tolist() == [False]


def test_a_row_of_the_holdout_is_evidence_however_often_it_is_there() -> None:
    row = row_text(an_example("Why?", "So.").turns)
    source = holdout_source("holdout", [(line, row) for line in range(1, 31)])
    assert best_hits([row_grams(row)], source) == [Hit(1.0, 1)]
    assert int((~source.is_shared).sum()) == 1


class TestRegisteredRows:
    def test_each_long_text_a_question_and_the_whole_are_asked(self) -> None:
        long = " ".join(WORDS[:13])
        row = {"id": "7", "question": "Why?", "choices": {"text": [long, "b"]}, "answerKey": "A"}
        assert item_of_row(3, row).asked == (long, f"7 Why? {long} b A", "Why?")

    def test_a_short_question_about_a_passage_is_none_by_itself(self) -> None:
        passage = " ".join(WORDS[:30])
        assert item_of_row(1, {"question": "Who?", "passage": passage}).asked == (passage, f"Who? {passage}")

    def test_of_conversations_and_prompts_the_answer_is_not_asked(self) -> None:
        row = {"messages": [system(), user("a"), assistant("b"), user("c"), assistant("d")]}
        assert item_of_row(1, row) == Item(1, ("a c",), "b d")
        assert item_of_row(1, {"prompt": "a", "completion": "b"}) == Item(1, ("a",), "b")

    def test_a_file_that_cannot_be_read_refuses_the_dataset(self) -> None:
        reader = LineReader(io.BytesIO(b"{}\n{"), name="arc", max_row_bytes=1000, max_rows=10)
        with pytest.raises(FileRefused, match="registered file arc, line 2"):
            list(items_of_rows("arc", reader))


def questions(count: int, *, seed: int) -> list[Row]:
    writer = Writer(seed)
    return [chat(user(writer.text(35)), assistant(writer.text(5))) for _ in range(count)]


def as_read(row: Row) -> str:
    return str(row["messages"][0]["content"])


class TestBenchmarks:
    ITEMS = questions(120, seed=1)
    GOOD = questions(300, seed=2)

    def contaminated(self, *planted: Row, items: list[Row] | None = None) -> frozenset[int]:
        """Places of the planted rows that are contaminated."""
        result = screen([*self.GOOD, *planted], sources={"arc": items or self.ITEMS}, contamination="keep")
        return frozenset(line - len(self.GOOD) for line in result.contaminated_lines)

    def test_a_question_with_a_worked_answer_is_found(self) -> None:
        planted = [chat(user(as_read(item)), assistant(REASONING)) for item in self.ITEMS[:50]]
        assert self.contaminated(*planted) == set(range(1, 51))

    def test_a_question_is_found_wherever_it_stands(self) -> None:
        text = as_read(self.ITEMS[0])
        planted = [
            chat(user("Go on."), assistant(f"{REASONING}{text}")),
            chat(system(text), user("Go on."), assistant()),
            chat(user(f"Answer.\n\n  {text.replace(' ', chr(10))}"), assistant()),
            chat(user(), assistant(), user(text), assistant()),
        ]
        assert self.contaminated(*planted) == {1, 2, 3, 4}

    def test_a_question_in_many_rows_is_a_leak_and_no_template(self) -> None:
        planted = [chat(user(as_read(self.ITEMS[0])), assistant(text)) for text in WORDS[:40]]
        assert self.contaminated(*planted) == set(range(1, 41))

    def test_an_instruction_that_items_and_rows_share_is_none(self) -> None:
        instruction = Writer(3).text(60)
        items, rows = (
            [chat(user(f"{instruction} {as_read(row)}"), assistant()) for row in group]
            for group in (self.ITEMS[:8], questions(30, seed=4))
        )
        assert self.contaminated(*rows, items=items) == frozenset()

    def test_a_short_question_is_found(self) -> None:
        items = [*self.ITEMS, {"question": "Who wrote this?", "choices": ["a", "b"], "answer": 0}]
        planted = [
            chat(user(" who  WROTE this? "), assistant(REASONING)),
            chat(user("Who wrote?"), assistant()),
        ]
        assert self.contaminated(*planted, items=items) == {1}

    def test_what_they_share_is_said(self) -> None:
        planted = [chat(user(f"Dear. {as_read(self.ITEMS[5])}"), assistant(text)) for text in WORDS[:90]]
        result = screen([*self.GOOD, *planted], sources={"arc": self.ITEMS})
        assert result.verdict.code == "too_many_dropped"
        assert (
            "90 of 390 rows of the training file are contaminated by what the gate asks (policy.contamination): "
            "23.1%, at most 20.0% (policy.max_dropped_ratio). Largest groups: 90 rows like line 6 of arc. "
            f"Most frequent shared text, in 90 rows: '{as_read(self.ITEMS[5])[:60]}"
        ) in result.verdict.message


class TestHoldout:
    TASK = Template(words=43, labels=7)
    TRAINING = TASK.rows(300, seed=1)
    ITEMS = TASK.rows(60, seed=2)

    def test_rows_of_its_task_are_kept(self) -> None:
        assert screen(self.TRAINING, holdout=self.ITEMS).dropped == 0

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text,
            lambda text: "  " + text.replace(" ", "\n", 20) + "\n ",
            lambda text: "Please. " + text,
        ],
    )
    def test_its_items_are_found_with_any_answer(self, change: Any) -> None:
        planted = [chat(user(change(as_read(item))), assistant(REASONING)) for item in self.ITEMS]
        result = screen([*self.TRAINING, *planted], holdout=self.ITEMS)
        assert result.kept == set(range(1, 301))
        assert dict(result.counts.contaminated_rows) == {"holdout": 60}

    def test_a_row_equal_to_one_of_it_is_a_leak_whatever_the_share(self) -> None:
        result = screen([*self.TRAINING, self.ITEMS[3]], holdout=self.ITEMS, contamination_ratio=1)
        assert result.kept == set(range(1, 301))
        assert (result.counts.contaminated, result.counts.of_holdout) == (1, 1)

    def test_a_row_nearly_equal_to_one_of_it_is_a_leak_though_few_of_its_words_stand_in_it(self) -> None:
        """Every thirteenth word is changed by one letter: no 13-gram is left, the prompts are alike all the same."""
        words = [f"{word}{word[::-1]}{index:04d}" for index, word in enumerate(Writer(7).text(130).split())]
        changed = [f"{word}s" if index % 13 == 0 else word for index, word in enumerate(words)]
        original, copy = (chat(user(" ".join(text)), assistant("yes")) for text in (words, changed))
        result = screen([*self.TRAINING, copy], holdout=[*self.ITEMS, original])
        assert result.kept == set(range(1, 301))
        assert (result.counts.contaminated, result.counts.of_holdout) == (1, 1)
        assert 301 not in {overlap.line for overlap in result.counts.overlaps}
        assert dict(result.counts.contaminated_rows) == {"holdout": 1}

    def test_what_is_kept_by_an_operators_word_is_counted_by_source(self) -> None:
        planted = [self.ITEMS[0], chat(user(as_read(self.ITEMS[1])), assistant(REASONING))]
        result = screen([*self.TRAINING, *planted], holdout=self.ITEMS, contamination="keep")
        assert len(result.kept) == 302
        assert result.counts.kept_leaks == {301: ("holdout",), 302: ("holdout",)}


EXACT = Match(Kept("training", 1), 1.0, is_exact=True)
NEAR = Match(Kept("training", 1), 0.95, is_exact=False)
OF_HOLDOUT = Match(Kept("holdout", 9), 1.0, is_exact=True)


@pytest.mark.parametrize(
    ("match", "is_contaminated", "changes", "expected"),
    [
        (None, False, {}, None),
        (None, True, {}, "contamination"),
        (None, True, {"contamination": "reject_file"}, "contamination"),
        (None, True, {"contamination": "keep"}, None),
        (EXACT, False, {}, "exact_duplicates"),
        (EXACT, False, {"exact_duplicates": "keep"}, None),
        (EXACT, False, {"near_duplicates": "keep"}, "exact_duplicates"),
        (NEAR, False, {}, "near_duplicates"),
        (NEAR, False, {"near_duplicates": "keep"}, None),
        (OF_HOLDOUT, True, {"exact_duplicates": "keep"}, "contamination"),
        (OF_HOLDOUT, True, {"contamination": "keep"}, None),
        (EXACT, True, {"contamination": "keep"}, "exact_duplicates"),
    ],
)
def test_what_drops_a_row_follows_from_the_policy(
    match: Match | None, is_contaminated: bool, changes: dict[str, Any], expected: str | None
) -> None:
    policy = DatasetPolicy(**changes)
    assert reason_to_drop(match, "training", policy, is_contaminated=is_contaminated) == expected


def test_a_safety_mix_may_say_one_thing_in_several_ways() -> None:
    assert reason_to_drop(NEAR, "safety_mix", DatasetPolicy(), is_contaminated=False) is None
    assert reason_to_drop(EXACT, "safety_mix", DatasetPolicy(), is_contaminated=False) == "exact_duplicates"


def test_the_holdout_is_never_changed() -> None:
    assert reason_to_drop(OF_HOLDOUT, "holdout", DatasetPolicy(), is_contaminated=True) is None


def test_a_row_like_one_of_the_holdout_gives_it_away() -> None:
    assert leaks_of({"arc": Hit(0.7, 4)}, OF_HOLDOUT, "training") == {"arc": 4, "holdout": 9}
    assert leaks_of({}, OF_HOLDOUT, "holdout") == {}
    assert leaks_of({}, EXACT, "training") == {}


def test_a_registered_row_is_read_whatever_its_fields_are() -> None:
    row = {"text": "x", "n": None, "more": [{"role": "user", "content": "hi"}]}
    reader = LineReader(io.BytesIO(json.dumps(row).encode()), name="arc", max_row_bytes=1000, max_rows=10)
    assert [item.asked for item in items_of_rows("arc", reader)] == [("x",)]
