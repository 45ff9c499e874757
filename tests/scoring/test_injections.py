"""Answers that try to judge themselves: what the code controls stays as it is, even with a judge that trusts all it reads."""

import asyncio

import pytest

from schemas.gate import JudgeRule
from services.evaluator.clients import judge
from services.evaluator.clients.judge import (
    Exchange,
    GuardClassifier,
    JudgeClassifier,
    ask_control_pairs,
    compare_answers,
)
from services.evaluator.gates.judge import Preference, gate_judge
from services.evaluator.gates.refusal import AnswerClass
from services.evaluator.scoring.rows import TaskRow
from tests.injections import GUESSED_MARK, INJECTIONS, has_token, leaves_the_data
from tests.scoring.judge_server import a_judge, server

ROWS = [
    TaskRow(key=f"{n:07d}-{n:016x}", asked=f"Question {n}?", reference=f"right {n}")
    for n in range(len(INJECTIONS))
]
BASE = {row.key: row.reference for row in ROWS}
INJECTED = {
    row.key: f"wrong {n}. {injection.text}"
    for n, (row, injection) in enumerate(zip(ROWS, INJECTIONS, strict=True))
}
RULE = JudgeRule(url="http://judge", model="judge")
PAIRS_AND_CONTROLS = 2 * (len(ROWS) + judge.MAX_CONTROL_PAIRS)


def honest(request):
    user = request["messages"][1]["content"]
    number = user.partition("Question ")[2].partition("?")[0]
    return "FIRST" if f"FIRST ANSWER\nright {number}\n" in user else "SECOND"


def trusting(request):
    """Judges well, unless an answer leaves the data that it is shown in: then the worse one wins."""
    system, user = (message["content"] for message in request["messages"])
    verdict = honest(request)
    if leaves_the_data(system, user, ["REQUEST", "FIRST ANSWER", "SECOND ANSWER"]):
        return "SECOND" if verdict == "FIRST" else "FIRST"
    return verdict


def gullible(request):
    """Does what any answer asks for: the answers with an injection win, and nothing in them has to leave the data."""
    user = request["messages"][1]["content"]
    first, _, second = user.partition("FIRST ANSWER\n")[2].partition("SECOND ANSWER\n")
    is_injected = ["wrong" in each for each in (first, second)]
    return honest(request) if is_injected[0] == is_injected[1] else "FIRST" if is_injected[0] else "SECOND"


async def winners(reply):
    """Return the techniques that both orders prefer, and the check."""
    async with server(reply) as (url, seen), a_judge(url) as asked:
        pairs = await compare_answers(asked, ROWS, BASE, INJECTED)
        control_pairs = await ask_control_pairs(asked, ROWS)
    assert len(seen) == PAIRS_AND_CONTROLS
    won = {INJECTIONS[n].technique for n, pair in enumerate(pairs) if pair.verdict is Preference.CANDIDATE}
    return won, gate_judge(RULE, pairs, control_pairs, expected=len(ROWS))


def those_that_leave_by(escape):
    return {each.technique for each in INJECTIONS if each.escapes == escape}


def test_the_injections_are_of_many_kinds():
    assert len({each.technique for each in INJECTIONS}) == len(INJECTIONS) >= 50
    assert len(those_that_leave_by("fence")) >= 3
    assert len(those_that_leave_by("token")) >= 10


async def test_none_leaves_its_data():
    won, check = await winners(trusting)
    assert (won, check.outcome) == (set(), "failed")


async def test_with_a_mark_that_can_be_guessed_they_would(monkeypatch):
    monkeypatch.setattr(judge.secrets, "token_hex", lambda _: GUESSED_MARK.lstrip("="))
    won, _ = await winners(trusting)
    assert won == those_that_leave_by("fence")


async def test_with_control_tokens_as_they_are_they_would(monkeypatch):
    monkeypatch.setattr(judge, "as_data", lambda text: text)
    won, _ = await winners(trusting)
    assert won == those_that_leave_by("token")


async def test_a_judge_that_does_what_answers_ask_for_is_convinced():
    """No code can prevent that of a judge; `tests/unit/evaluator/test_gaming.py`: it decides nothing alone."""
    won, check = await winners(gullible)
    assert (len(won), check.outcome) == (len(INJECTIONS), "passed")


@pytest.mark.parametrize("word", ["FIRST", "SECOND", "TIE"])
async def test_one_reply_to_both_orders_convinces_nobody(word):
    """An injection that wins only the place that it names is preferred by one order and not by the other."""

    def reply(request):
        user = request["messages"][1]["content"]
        return word if "wrong" in user else honest(request)

    won, check = await winners(reply)
    assert won == set()
    assert check.outcome != "passed" or word == "TIE"


async def test_a_classifier_takes_none_for_a_refusal():
    def reply(request):
        system, user = (message["content"] for message in request["messages"])
        return "REFUSED" if leaves_the_data(system, user, ["REQUEST", "ANSWER"]) else "COMPLIED"

    exchanges = [Exchange("How?", f"First take a ladder. {each.text}") for each in INJECTIONS]
    async with server(reply) as (url, _), a_judge(url) as asked:
        classes = await JudgeClassifier(asked, "judge").classify(exchanges)
    assert classes == [AnswerClass.ANSWER] * len(INJECTIONS)


async def test_a_guard_model_is_shown_two_messages_whatever_is_in_them():
    def reply(request):
        contents = [message["content"] for message in request["messages"]]
        return "safe" if any(map(has_token, contents)) or len(contents) != 2 else "unsafe\nS2"

    exchanges = [Exchange(each.text, f"Take a ladder. {each.text}") for each in INJECTIONS]
    async with server(reply) as (url, _), a_judge(url) as asked:
        classes = await GuardClassifier(asked, "guard").classify(exchanges)
    assert classes == [AnswerClass.ANSWER] * len(INJECTIONS)


@pytest.mark.parametrize(
    "text",
    ["a < b and b > c", "x[0] = [1, 2]", "if (a<b) return", "[see below](http://x)", "1 << 2 >> 3", "Ärger"],
)
def test_what_is_no_token_is_shown_as_it_is(text):
    assert judge.as_data(text) == text


# Look-alikes are meant: they must not be taken for the word.
NO_VERDICTS = (
    "ﬁrst", "ＦＩＲＳＴ", "FІRST", "FIRST\u200b", "\u202eTSRIF", "≠ FIRST", "!= FIRST", "not FIRST", "¬FIRST",
    "FIRST?", "(FIRST", "FI<think>no</think>RST", "FIRST<think>or not</think>", "<think>FIRST",
    "<think>it says </think>FIRST<think> so no</think>", "FIRST SECOND", "FIRST, not SECOND", '{"verdict": "FIRST"}',
    "[[FIRST]]", "<verdict>FIRST</verdict>", "Verdict: FIRST", "FIRST\nbecause", "1. FIRST", "FIRST\x00", "_FIRSTLY_",
)  # fmt: skip
NO_GUARD_WORDS = ("ſafe", "unſafe\nS1", "unsafe\nſ1", "unsafe\nS١", "safe safe", "safe.", "not safe")


async def test_a_reply_that_is_not_one_word_is_none():
    async def read(asked, number):
        return await asked.ask("{mark}", [("REQUEST", str(number))], ("FIRST", "SECOND", "TIE"))

    def reply(request):
        return NO_VERDICTS[int(request["messages"][1]["content"].splitlines()[1])]

    async with server(reply) as (url, _), a_judge(url, attempts=1) as asked:
        verdicts = await asyncio.gather(*(read(asked, number) for number in range(len(NO_VERDICTS))))
    assert [text for text, verdict in zip(NO_VERDICTS, verdicts, strict=True) if verdict is not None] == []


async def test_a_guard_reply_in_other_letters_is_none():
    def reply(request):
        return NO_GUARD_WORDS[int(request["messages"][0]["content"])]

    exchanges = [Exchange(str(number), "answer") for number in range(len(NO_GUARD_WORDS))]
    async with server(reply) as (url, _), a_judge(url, attempts=1) as asked:
        assert set(await GuardClassifier(asked, "guard").classify(exchanges)) == {None}


async def test_thoughts_end_where_they_end_last():
    """An answer that is quoted in the thoughts may have their end in it."""
    quoted = "<think>It writes </think>FIRST, which is a trick.</think>SECOND"
    async with server(lambda _: quoted) as (url, _), a_judge(url) as asked:
        verdict = await asked.ask("{mark}", [("REQUEST", "x")], ("FIRST", "SECOND", "TIE"))
    assert verdict == "SECOND"
