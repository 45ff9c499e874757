"""Whatever is done to a log at whatever place, the audit finds it; and finds nothing where nothing was done."""

import json
import random
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from ops.audit.findings import Finding
from ops.audit.reading import Statements
from ops.audit.recount import Recount
from ops.audit.statements import Walk
from schemas import layout
from schemas.audit import Statement
from services.auditor import decide
from shared.audit.chain import Chain, begin, extend
from shared.audit.signing import SigningKey
from shared.partition import Partition
from shared.storage.testing import FakeObjectStore
from tests.chaos.scale import note, scaled
from tests.unit.auditor.records import START_MS, TOPIC_PARTITION, records, seeded
from tests.unit.ops.audit_world import (
    FULL_EVERY,
    KEY,
    LATE,
    QUIET,
    RETENTION,
    SOON,
    TAMPERS,
    Tamper,
    World,
    at,
    renumbered,
    walked,
)

NOT_WHOLE = "it names only what moved, and those before it, from a full one on, are not whole"
CASES = scaled(40, 40, 25_000)


def numbers(finding: Finding) -> tuple[int, int]:
    assert finding.between is not None
    return finding.between


class TestRecords:
    @pytest.mark.parametrize("tamper", TAMPERS.values(), ids=TAMPERS)
    def test_every_tampering_is_found_where_it_is(self, tamper: Tamper, request: pytest.FixtureRequest):
        rng, seed_hint = seeded(request.node.name)
        for case in range(CASES):
            world = World.of(rng, count=rng.randrange(8, 40))
            changed, offsets = tamper(rng, world.log, world.covered)
            end = changed[-1].offset + 1 if changed else len(world.log)
            there = range(changed[0].offset if changed else end, end)
            findings = replace(world, log=changed).verify(there=there)
            where = f"case {case} at {sorted(offsets)}: {findings}; {seed_hint}"
            assert any(offsets & set(each.offsets or ()) for each in findings), where
            assert {each.what for each in findings} <= {"changed", "truncated", "deleted"}, where
        note("history changed", cases=CASES)

    def test_nothing_is_found_where_nothing_was_done(self):
        rng, seed_hint = seeded("clean")
        for case in range(CASES):
            world = World.of(rng, count=rng.randrange(4, 40))
            for first in (1, world.full_before(len(world.documents))):
                assert world.verify(first=first) == [], f"case {case} from {first}; {seed_hint}"

    def test_what_retention_takes_is_no_finding_and_the_rest_is_still_compared(self):
        rng, seed_hint = seeded("retention")
        for case in range(CASES):
            world = World.of(rng)
            start = rng.randrange(1, len(world.log) + 1)
            kept = replace(world, log=world.log[start:])
            there = range(start, len(world.log))
            assert kept.verify(now=LATE, there=there) == [], f"case {case} from {start}; {seed_hint}"
            anchored = walked(list(enumerate(world.documents, 1))).anchors[TOPIC_PARTITION]
            first = next((each.next_offset for each in anchored if each.next_offset >= start), None)
            if first is not None and first < world.covered:
                offset = rng.randrange(first, world.covered)
                kept.log[offset - start] = replace(world.log[offset], value=b"forged")
                findings = kept.verify(now=LATE, there=there)
                assert [offset in each.offsets for each in findings] == [True], (
                    f"case {case}: {findings}; {seed_hint}"
                )

    def test_a_change_is_reported_between_the_two_statements_around_it(self):
        rng, seed_hint = seeded("between")
        for _ in range(CASES):
            world = World.of(rng)
            offset = rng.randrange(world.covered)
            world.log[offset] = replace(world.log[offset], value=b"forged")
            (finding,) = world.verify()
            anchors = walked(list(enumerate(world.documents, 1))).anchors[TOPIC_PARTITION]
            before = max(each.next_offset for each in anchors if each.next_offset <= offset)
            behind = min(each.next_offset for each in anchors if each.next_offset > offset)
            assert finding.offsets == range(before, behind), seed_hint
            assert all(
                any(each.number == number and each.next_offset == offset for each in anchors)
                for number, offset in zip(numbers(finding), (before, behind), strict=True)
            ), seed_hint

    def test_what_is_behind_the_last_statement_is_not_covered_and_no_finding(self):
        rng, _ = seeded("behind")
        world = World.of(rng)
        more = replace(world.log[-1], offset=len(world.log))
        world.log.append(more)
        anchors = walked(list(enumerate(world.documents, 1))).anchors[TOPIC_PARTITION]
        recount = Recount(TOPIC_PARTITION, anchors, range(len(world.log)), now=SOON, retention=RETENTION)
        assert recount.not_covered == len(world.log) - world.covered
        for record in world.log:
            recount.take(record)
        assert (recount.finish(), recount.records) == ([], world.covered)

    def test_a_log_made_again_and_longer_is_found(self):
        rng, _ = seeded("anew")
        world = World.of(rng)
        world.log = renumbered(records(rng, 100))
        (finding,) = world.verify()
        assert (finding.what, finding.offsets) == ("changed", range(world.covered))


class TestRetention:
    def test_time_decides_for_each_record_of_the_head(self):
        """Half of the log is older than the topic keeps: what is gone beyond that was deleted."""
        rng, seed_hint = seeded("half")
        for _ in range(CASES):
            world = World.of(rng)
            half = len(world.log) // 2
            now = at(world.log[half].timestamp_ms) + RETENTION - timedelta(minutes=5)
            start = rng.randrange(1, world.covered)
            findings = replace(world, log=world.log[start:]).verify(now=now)
            documented = [
                a.next_offset for a in walked(list(enumerate(world.documents, 1))).anchors[TOPIC_PARTITION]
            ]
            is_sure = start > min((each for each in documented if each > half), default=10**9)
            if start <= half:
                assert findings == [], seed_hint
            if is_sure:
                assert [each.what for each in findings] == ["deleted"], seed_hint

    def test_records_that_a_quiet_topic_just_got_are_missed_at_once(self):
        """A statement of long ago and one of now: what came in between is young, however much of it is gone."""
        rng, _ = seeded("quiet")
        old, log = records(rng, 5), []
        days = int(timedelta(days=59).total_seconds() * 1000)
        log = [
            *old,
            *(replace(each, timestamp_ms=each.timestamp_ms + days) for each in records(rng, 5, start=5)),
        ]
        first = extend(begin(TOPIC_PARTITION, at=0), log[:5])
        second = extend(replace(first, oldest_ms=None, newest_ms=None), log[5:])
        world = World(log, covered=10)
        for chain in (first, second):
            last = world._last(len(world.documents)) if world.documents else decide.Last()
            world.documents.append(KEY.sign(decide.state(last, [chain], None, now=LATE)))
        assert replace(world, log=log[5:]).verify(now=LATE) == []
        (finding,) = replace(world, log=log[7:]).verify(now=LATE)
        assert (finding.what, finding.offsets, finding.between) == ("deleted", range(5, 7), (1, 2))


class TestStatements:
    @pytest.fixture
    def world(self) -> World:
        rng, _ = seeded("statements")
        return World.of(rng)

    def findings(self, documents: list[tuple[int, bytes]], first: int = 1) -> list[Finding]:
        return walked(documents, first=first).findings

    def test_whole_they_are_clean_from_whichever_full_one_one_begins(self, world: World):
        documents, begun = list(enumerate(world.documents, 1)), 0
        for first, _ in documents:
            findings = self.findings(documents[first - 1 :], first=first)
            if world.full_before(first) == first:
                begun += 1
                assert findings == []
            else:
                assert [each.detail for each in findings] == [NOT_WHOLE]
        assert begun > 2

    async def read(self, world: World, since: int, *without: int) -> Walk:
        objects = FakeObjectStore()
        for number, document in enumerate(world.documents, 1):
            if number not in without:
                await objects.put_bytes(layout.audit_statement(number), document)
        return await (await Statements.open(objects, KEY.public)).walk(since, None, lambda more: None)

    async def test_read_from_any_on_they_anchor_what_that_one_would_if_it_named_all(self, world: World):
        """So a log that was repaired is checked from the statement of the repair on, and no earlier."""
        for since in range(2, len(world.documents) + 1):
            walk = await self.read(world, since)
            heads = walked(list(enumerate(world.documents[:since], 1))).heads
            assert (walk.first, walk.number, walk.findings) == (since, len(world.documents), [])
            assert {partition: each[0].link for partition, each in walk.anchors.items()} == {
                partition: chain.link for partition, chain in heads.items()
            }
            assert {each[0].number for each in walk.anchors.values()} == {since}

    async def test_read_from_one_before_which_one_is_missing_they_say_so(self, world: World):
        full = world.full_before(len(world.documents) - 2)
        walk = await self.read(world, full + 2, full)
        assert [each.detail for each in walk.findings] == [NOT_WHOLE]
        assert (await self.read(world, full, full - 1)).findings == []

    def test_every_one_that_is_missing_in_between_is_found(self, world: World):
        documents = list(enumerate(world.documents, 1))
        for at_ in range(len(documents) - 1):
            (finding,) = self.findings(documents[:at_] + documents[at_ + 1 :])
            assert (finding.what, finding.between) == ("statement", (at_, at_ + 2))
            assert finding.detail == f"missing are {at_ + 1}–{at_ + 1}"

    def test_every_one_that_is_replaced_by_another_is_found(self, world: World):
        documents = list(enumerate(world.documents, 1))
        for at_, (number, _) in enumerate(documents):
            for other in range(len(documents)):
                if other == at_:
                    continue
                swapped = [*documents]
                swapped[at_] = (number, world.documents[other])
                assert any(number in numbers(each) for each in self.findings(swapped))

    def test_the_first_that_is_looked_at_is_known_by_its_number(self, world: World):
        (finding,) = self.findings([(5, world.documents[3])], first=5)
        assert finding.detail == "found the statement 4 in the place of 5"

    def test_one_signed_by_another_key_is_found(self, world: World):
        stranger = SigningKey.make()
        for number in range(1, len(world.documents) + 1):
            documents = [*world.documents]
            documents[number - 1] = stranger.sign(KEY.public.open(documents[number - 1]))
            findings = self.findings(list(enumerate(documents, 1)))
            assert any("found the key" in each.detail and number in numbers(each) for each in findings)

    def test_a_history_that_was_signed_twice_is_found(self, world: World):
        """Whoever has the key too can sign another stream, but not one that the old statements follow."""
        statement = KEY.public.open(world.documents[3])
        documents = [*world.documents]
        documents[3] = KEY.sign(
            statement.model_copy(update={"signed_at": statement.signed_at + timedelta(0, 0.1)})
        )
        findings = self.findings(list(enumerate(documents, 1)))
        assert [numbers(each) for each in findings] == [(4, 5)]
        assert "it follows one with sha256" in findings[0].detail

    @pytest.mark.parametrize("moved", [None, {TOPIC_PARTITION}], ids=["full", "what moved"])
    @pytest.mark.parametrize(
        ("change", "detail"),
        [
            ({"next_offset": 0}, "it goes back from offset"),
            ({"start_offset": 1}, "its chain begins again at offset 1"),
            ({"link": b"\0" * 32}, "two links at offset"),
        ],
    )
    def test_statements_that_contradict_each_other_are_found(
        self, world: World, change: dict, detail: str, moved: set[Partition] | None
    ):
        chain = replace(walked(list(enumerate(world.documents, 1))).heads[TOPIC_PARTITION], **change)
        more = world.statement([chain, QUIET], moved)
        (finding,) = self.findings(list(enumerate([*world.documents, KEY.sign(more)], 1)))
        assert (finding.what, finding.partition, finding.detail.startswith(detail)) == (
            "statement",
            TOPIC_PARTITION,
            True,
        )

    def test_a_partition_that_a_full_one_leaves_out_is_found(self, world: World):
        more = world.statement([QUIET], None)
        (finding,) = self.findings(list(enumerate([*world.documents, KEY.sign(more)], 1)))
        assert (finding.partition, finding.detail) == (TOPIC_PARTITION, "it is not named any more")

    @pytest.mark.parametrize("change", [{"next_offset": 4}, {"link": b"\0" * 32}, {"start_offset": 1}, None])
    def test_whatever_moved_and_is_not_named_is_found(self, world: World, change: dict | None):
        """Of a statement that names another partition alone, and is signed over what the auditor had of all."""
        chain = walked(list(enumerate(world.documents, 1))).heads[TOPIC_PARTITION]
        other = [replace(QUIET, **change)] if change else []
        more = world.statement([chain, *other], {TOPIC_PARTITION})
        more = more.model_copy(update={"is_full": False})
        (finding,) = self.findings(list(enumerate([*world.documents, KEY.sign(more)], 1)))
        assert finding.detail == "it was signed over other heads than it and those before it name"

    def test_records_that_were_gone_before_they_were_read_are_reported(self, world: World):
        again = begin(TOPIC_PARTITION, at=world.covered + 7)
        more = world.statement([again, QUIET], {TOPIC_PARTITION})
        walk = walked(list(enumerate([*world.documents, KEY.sign(more)], 1)))
        (finding,) = walk.findings
        assert (finding.what, finding.offsets) == ("unread", range(world.covered, world.covered + 7))
        assert [each.next_offset for each in walk.anchors[TOPIC_PARTITION]] == [world.covered + 7]

    def test_those_that_name_what_moved_anchor_what_those_that_name_all_do(self):
        """So whatever the one finds in a log, the other does: at every statement the heads are the same too."""
        rng, seed_hint = seeded("both")
        for _ in range(CASES):
            chains = {partition: begin(partition, at=rng.randrange(5)) for partition in PARTITIONS}
            both = Walk(KEY.public, 1), Walk(KEY.public, 1)
            lasts = decide.Last(), decide.Last()
            for number in range(1, rng.randrange(2, 15)):
                moved = {partition for partition in chains if rng.random() < 0.4}
                chains |= {partition: _moved_on(rng, chains[partition]) for partition in moved}
                named = moved if (number - 1) % FULL_EVERY else None
                documents = [
                    KEY.sign(decide.state(last, chains.values(), names, now=at(START_MS + number)))
                    for last, names in zip(lasts, (named, None), strict=True)
                ]
                for walk, document in zip(both, documents, strict=True):
                    walk.take(number, document)
                lasts = tuple(decide.Last(number, sha256(document).hexdigest()) for document in documents)
                chains = {partition: _without_times(chain) for partition, chain in chains.items()}
                assert [_untimed(walk) for walk in both] == [chains, chains], seed_hint
            assert both[0].anchors == both[1].anchors, seed_hint
            assert [walk.findings for walk in both] == [[], []], seed_hint

    def test_statements_of_before_which_name_all_and_say_no_more_are_whole(self, world: World):
        """As they were written when every statement named every partition, and followed by those of now."""
        rng, _ = seeded("of before")
        chain, documents = begin(TOPIC_PARTITION, at=0), []
        last = decide.Last()
        for number in range(1, 8):
            chain = extend(chain, records(rng, 2, start=chain.next_offset))
            statement = decide.state(
                last, [chain, QUIET], None if number < 5 else {TOPIC_PARTITION}, now=at(START_MS + number)
            )
            document = KEY.sign(statement) if number >= 5 else of_before(statement)
            documents.append(document)
            last = decide.Last(number, sha256(document).hexdigest())
        for first in range(1, 5):
            walk = walked(list(enumerate(documents, 1))[first - 1 :], first=first)
            assert (walk.findings, walk.anchors[TOPIC_PARTITION][-1].next_offset) == ([], 14)
        assert b"heads_sha256" not in documents[0]


PARTITIONS = [
    Partition(topic, partition) for topic in ("job.events", "node.events") for partition in range(3)
]


def _moved_on(rng: random.Random, chain: Chain) -> Chain:
    return extend(
        chain,
        records(rng, rng.randrange(1, 4), start=chain.next_offset, topic_partition=chain.topic_partition),
    )


def _without_times(chain: Chain) -> Chain:
    return replace(chain, oldest_ms=None, newest_ms=None)


def _untimed(walk: Walk) -> dict[Partition, Chain]:
    return {partition: _without_times(chain) for partition, chain in (walk.heads or {}).items()}


def of_before(statement: Statement) -> bytes:
    """Signed as by an auditor that knew no more fields."""

    class Before(Statement):
        def model_dump_json(self, **how: Any) -> str:
            return super().model_dump_json(**how, exclude={"is_full", "heads_sha256"})

    return KEY.sign(Before.model_validate(statement.model_dump()))


def test_a_finding_is_shown_to_people_and_to_machines():
    finding = Finding("changed", "why", TOPIC_PARTITION, range(3, 9), (4, 5))
    assert finding.row == ("changed", "job.events/1", "3–8", "4–5", "why")
    assert json.loads(json.dumps(finding.value)) == {
        "what": "changed",
        "detail": "why",
        "topic": "job.events",
        "partition": 1,
        "first_offset": 3,
        "next_offset": 9,
        "after_statement": 4,
        "by_statement": 5,
    }
    assert Finding("late", "why").row == ("late", "", "", "", "why")


assert at(START_MS) < SOON < LATE
