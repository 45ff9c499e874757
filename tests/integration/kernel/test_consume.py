"""The consumer on real Kafka and Postgres: effects are once, order holds, nothing is lost."""

import json
from datetime import UTC, datetime, timedelta
from secrets import token_hex

import pytest

from schemas.envelope import Envelope, to_headers
from tests.integration.kernel.conftest import Writer, costs_of, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack


async def effects(db, key: str) -> int:
    return await db.fetchval("SELECT count(*) FROM effect WHERE aggregate_id = $1", key)


async def parked(db, key: str) -> list:
    return await db.fetch(
        "SELECT id, reason, state, event_id, blocks FROM parked WHERE aggregate_id = $1 ORDER BY id", key
    )


async def applied(db, event_id: str) -> bool:
    return await db.fetchval("SELECT true FROM inbox WHERE event_id = $1", event_id)


async def test_redelivery_changes_nothing(service, writer, db, login):
    key = new_key()
    record = writer.message(key)
    for _ in range(3):
        await writer.raw(**record)
    last = await writer.good(new_key())
    await until(lambda: applied(db, last), "the record after the duplicates")
    assert await effects(db, key) == 1
    await until(lambda: costs_of(login, key), "the emitted fact in Kafka")
    assert len(await costs_of(login, key)) == 1
    assert await parked(db, key) == []


@pytest.mark.parametrize("hours", [23, -23])
async def test_a_record_of_a_machine_whose_clock_is_wrong_has_its_effect(service, writer, db, hours):
    key, time = new_key(), datetime.now(UTC) + timedelta(hours=hours)
    await writer.raw(**writer.message(key), timestamp_ms=int(time.timestamp() * 1000))
    await until(lambda: effects(db, key), "its effect")


async def test_another_event_with_a_number_that_was_read_is_parked_and_holds_nothing_back(
    service, writer, db
):
    key = new_key()
    await writer.good(key, sequence=1)
    other = await writer.good(key, sequence=1)
    after = await writer.good(key, sequence=2)
    await until(lambda: applied(db, after), "the event behind it")
    rows = [(row["reason"], row["event_id"], row["blocks"]) for row in await parked(db, key)]
    assert rows == [("other_event", other, False)]


async def test_the_same_id_with_another_payload_is_parked_and_holds_nothing_back(service, writer, db):
    key = new_key()
    event_id = await writer.good(key)
    await writer.good(key, event_id=event_id, tenant="forged", sequence=2)
    after = await writer.good(key, sequence=2)
    await until(lambda: applied(db, after), "the record after the forged twin")
    assert [row["reason"] for row in await parked(db, key)] == ["other_payload"]
    assert await db.fetchval("SELECT count(*) FROM effect WHERE tenant = 'forged'") == 0


def without(record: dict, header: str) -> dict:
    return record | {"headers": [each for each in record["headers"] if each[0] != header]}


def with_header(record: dict, name: str, value: bytes | None) -> dict:
    others = [each for each in record["headers"] if each[0] != name]
    return record | {"headers": [*others, (name, value)]}


HOSTILE = {
    "bad_json": lambda record: record | {"value": b"{not json"},
    "truncated": lambda record: record | {"value": record["value"][:-3]},
    "not_utf8": lambda record: record | {"value": b"\xff\xfe\x00"},
    "empty": lambda record: record | {"value": b""},
    "tombstone": lambda record: record | {"value": None},
    "array": lambda record: record | {"value": b"[1, 2]"},
    "deep": lambda record: record | {"value": b"[" * 100_000},
    "deep_in_a_foreign_field": lambda record: (
        record | {"value": b'{"x": ' + b"[" * 900 + b"]" * 900 + b"," + record["value"][1:]}
    ),
    "huge": lambda record: record | {"value": b'{"x": "' + b"x" * 1_000_000 + b'"}'},
    "missing_field": lambda record: record | {"value": b"{}"},
    "wrong_field_type": lambda record: record | {"value": json.dumps({"job_id": 7}).encode()},
    "null_header": lambda record: with_header(record, "ce_source", None),
    "binary_header": lambda record: with_header(record, "ce_source", b"\xff\xfe"),
    "foreign_null_header": lambda record: with_header(record, "x-other", None),
    "no_headers": lambda record: record | {"headers": []},
    "no_content_type": lambda record: without(record, "content-type"),
    "other_content_type": lambda record: with_header(record, "content-type", b"text/plain"),
    "no_id": lambda record: without(record, "ce_id"),
    "no_type": lambda record: without(record, "ce_type"),
    "strange_type": lambda record: with_header(record, "ce_type", b"com.other.Thing"),
    "unknown_type": lambda record: with_header(record, "ce_type", b"retune.NodesExploded.v1"),
    "newer_version": lambda record: with_header(record, "ce_type", b"retune.NodesReleased.v99"),
    "no_sequence": lambda record: without(record, "ce_sequence"),
    "bad_sequence": lambda record: with_header(record, "ce_sequence", b"first"),
    "bad_time": lambda record: with_header(record, "ce_time", b"yesterday"),
    "nul_in_a_field": lambda record: record | {"value": record["value"].replace(b'"acme"', b'"ac\\u0000me"')},
    "nul_in_a_field_name": lambda record: record | {"value": b'{"\\u0000": 1, ' + record["value"][1:]},
    "nul_in_a_header": lambda record: with_header(record, "ce_source", b"/retune/\0"),
    "nul_in_a_foreign_header": lambda record: with_header(record, "x-other\0", b"\0"),
    "nul_in_the_id": lambda record: with_header(record, "ce_id", b"\0"),
    "nul_in_the_key": lambda record: with_header(record, "ce_partitionkey", b"") | {"key": b"k\0"},
    "endless_id": lambda record: with_header(record, "ce_id", token_hex(4000).encode()),
    "endless_key": lambda record: (
        with_header(record, "ce_partitionkey", b"") | {"key": token_hex(4000).encode()}
    ),
    "key_and_partitionkey_differ": lambda record: with_header(record, "ce_partitionkey", b"other"),
    "key_and_payload_differ": lambda record: with_header(record, "ce_partitionkey", b"x") | {"key": b"x"},
}


async def test_every_kind_of_hostile_record_is_parked_with_a_reason_and_good_ones_pass(service, writer, db):
    locations, good = {}, []
    for name, spoil in HOSTILE.items():
        sent = await writer.raw(**spoil(writer.message(new_key())))
        locations[name] = (sent.partition, sent.offset)
        good.append(await writer.good(new_key()))
    no_key = await writer.raw(**(writer.message(new_key()) | {"key": None}))
    locations["no_key"] = (no_key.partition, no_key.offset)
    good.append(await writer.good(new_key()))
    for event_id in good:
        await until(lambda event_id=event_id: applied(db, event_id), "a good record among hostile ones")
    rows = await db.fetch(
        'SELECT partition, "offset", reason, detail, value, value_bytes, is_cut FROM parked'
    )
    by_location = {(row["partition"], row["offset"]): row for row in rows}
    missing = [name for name, location in locations.items() if location not in by_location]
    assert missing == []
    assert all(by_location[location]["detail"] for location in locations.values())
    assert by_location[locations["huge"]]["reason"] == "too_large"
    huge = by_location[locations["huge"]]
    assert (len(huge["value"]), huge["value_bytes"], huge["is_cut"]) == (64 * 1024, 1_000_009, True)
    assert not by_location[locations["bad_json"]]["is_cut"]
    assert by_location[locations["unknown_type"]]["reason"] == "unknown_type"
    assert by_location[locations["newer_version"]]["reason"] == "newer_version"


async def test_a_gap_in_a_story_is_parked_not_passed_over(service, writer, db):
    key = new_key()
    await writer.good(key)
    await writer.good(key, sequence=3)
    rows = await until(lambda: parked(db, key), "the message after the gap")
    assert [row["reason"] for row in rows] == ["gap"]
    assert await effects(db, key) == 1


async def test_what_is_behind_a_parked_message_waits_for_it_and_other_stories_pass(service, writer, db):
    key, other = new_key(), new_key()
    await writer.good(key, tenant="hopeless")
    await writer.good(key)
    passed = await writer.good(other)
    await until(lambda: applied(db, passed), "another aggregate's message")

    async def both():
        rows = await parked(db, key)
        return rows if len(rows) == 2 else None

    rows = await until(both, "both messages of the story parked")
    assert [row["reason"] for row in rows] == ["rejected", "behind_parked"]
    assert await effects(db, key) == 0


class TestParkedCommands:
    @pytest.fixture
    async def story(self, service, writer, db):
        """A story whose first message can never succeed, with two good ones behind it."""
        key = new_key()
        await writer.good(key, tenant="hopeless")
        await writer.good(key)
        await writer.good(key)

        async def all_three():
            rows = await parked(db, key)
            return rows if len(rows) == 3 else None

        return key, await until(all_three, "the story parked")

    async def test_dropping_the_first_lets_the_rest_continue_in_order(self, story, login, db):
        from schemas.parked import DropParked
        from shared.messaging.reader import send

        key, rows = story
        await send(
            login, DropParked(service="tracker", parked_id=rows[0]["id"], reason="test"), writer="admin"
        )

        async def resolved():
            states = [row["state"] for row in await parked(db, key)]
            return states if "parked" not in states else None

        assert await until(resolved, "all to be resolved") == ["dropped", "replayed", "replayed"]
        order = [
            row["event_id"]
            for row in await db.fetch(
                "SELECT event_id FROM effect WHERE aggregate_id = $1 ORDER BY number", key
            )
        ]
        assert order == [rows[1]["event_id"], rows[2]["event_id"]]

    async def test_a_replay_that_fails_again_stays_parked_and_says_so(self, story, login, db):
        from schemas.parked import ReplayParked
        from shared.messaging.reader import send

        key, rows = story
        command = await send(login, ReplayParked(service="tracker", parked_id=rows[0]["id"]), writer="admin")
        await until(lambda: applied(db, command), "the replay command")

        async def emitted():
            return await db.fetchval(
                "SELECT value FROM outbox WHERE type = 'ParkedResolved' AND headers ->> 'ce_correlationid' = $1",
                command,
            )

        outcome = json.loads(await until(emitted, "the outcome of the replay"))
        assert (outcome["parked_id"], outcome["state"]) == (rows[0]["id"], "parked")
        assert outcome["reason"].startswith("still parked: rejected: ")
        assert [row["state"] for row in await parked(db, key)] == ["parked"] * 3
        assert await effects(db, key) == 0

    async def test_a_replay_of_what_is_not_parked_is_refused(self, service, login, db):
        from schemas.parked import ReplayParked
        from shared.messaging.reader import send

        command = await send(login, ReplayParked(service="tracker", parked_id=10**9), writer="admin")

        async def refused():
            return await db.fetchval(
                "SELECT true FROM outbox WHERE type = 'CommandRefused' AND headers ->> 'ce_causationid' = $1",
                command,
            )

        await until(refused, "CommandRefused")


class TestAnOldCommand:
    """Nothing of it is in the inbox: an offset was reset after the inbox was pruned."""

    @pytest.mark.parametrize("which", ["written", "recorded"])
    async def test_is_refused_as_expired(self, service, writer, stack, login, db, which):
        from schemas.parked import DropParked

        key = new_key()
        await writer.good(key, tenant="hopeless")
        (row,) = await until(lambda: parked(db, key), "a parked message")
        old = datetime.now(UTC) - timedelta(days=30, minutes=5)
        command = DropParked(service="tracker", parked_id=row["id"], reason="test")
        envelope = Envelope(
            id=key,
            type=command.type,
            version=1,
            source="/retune/admin",
            time=old if which == "written" else datetime.now(UTC) + timedelta(days=300),
            key=command.key,
        )
        async with Writer(stack, "admin") as admin:
            await admin._producer.send_and_wait(
                "parked.commands",
                value=command.model_dump_json().encode(),
                key=command.key.encode(),
                headers=to_headers(envelope),
                timestamp_ms=int(old.timestamp() * 1000) if which == "recorded" else None,
            )

        async def refusal():
            return await db.fetchval(
                "SELECT value FROM outbox WHERE type = 'CommandRefused' AND headers ->> 'ce_causationid' = $1",
                key,
            )

        assert json.loads(await until(refusal, "CommandRefused"))["code"] == "expired"
        assert [row["state"] for row in await parked(db, key)] == ["parked"]


async def test_a_message_waits_for_its_parent_and_keeps_its_place(service, writer, db):
    key = new_key()
    first = await writer.good(key, tenant="orphan")
    second = await writer.good(key)

    async def two_wait():
        return await db.fetchval("SELECT count(*) = 2 FROM waiting WHERE aggregate_id = $1", key)

    await until(two_wait, "both messages waiting")
    assert await effects(db, key) == 0
    async with service.unit() as unit:
        await unit.conn.execute("INSERT INTO parent VALUES ($1)", key)
        await unit.release(f"job:{key}")

    async def both():
        rows = await db.fetch("SELECT event_id FROM effect WHERE aggregate_id = $1 ORDER BY number", key)
        return [row["event_id"] for row in rows] if len(rows) == 2 else None

    assert await until(both, "both applied") == [first, second]
    assert await db.fetchval("SELECT count(*) FROM waiting WHERE aggregate_id = $1", key) == 0


async def test_a_tenant_whose_messages_fail_holds_up_no_other(service, writer, db):
    """In the same partition; each of them is tried for seconds before it is parked."""
    broken = [await writer.good(new_key(), tenant="broken") for _ in range(10)]
    good = await writer.good(new_key(), tenant="another")
    await until(lambda: applied(db, good), "the other tenant's message")
    assert await db.fetchval("SELECT count(*) FROM parked WHERE event_id = ANY($1)", broken) == 0

    async def all_parked():
        return await db.fetchval("SELECT count(*) = 10 FROM parked WHERE event_id = ANY($1)", broken)

    await until(all_parked, "all that fail to be parked")
