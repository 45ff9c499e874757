"""What a runner still knows after its own death."""

import asyncio
from datetime import UTC, datetime

import pytest

from schemas import layout
from services.trainer_agent.runner import logs
from services.trainer_agent.runner.journal import Acknowledged, ChildStarted, Journal, Listening, Reported
from services.trainer_agent.runner.logs import LogShipper
from shared.errors import StorageUnavailable
from shared.storage.testing import FakeObjectStore

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def a_report(name: str) -> Reported:
    return Reported(id=name, type="RunnerStarted", time=NOON, payload={})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_is_empty_at_first(path):
    journal = Journal(path)
    assert (journal.has_started_child, journal.reports) == (False, [])


def test_keeps_its_orders(path):
    journal = Journal(path)
    for entry in (Listening(offset=7), a_report("one"), a_report("two"), ChildStarted()):
        journal.add(entry)
    journal.add(Acknowledged(id="one"))
    again = Journal(path)
    assert again.has_started_child, "with an entry of an older release"
    assert [report.id for report in again.unacknowledged] == ["two"]


def test_a_line_that_a_crash_cut_off_is_dropped(path):
    journal = Journal(path)
    journal.add(a_report("one"))
    with path.open("ab") as file:
        file.write(b'{"kind":"repor')
    again = Journal(path)
    again.add(a_report("two"))
    assert [report.id for report in Journal(path).reports] == ["one", "two"]


class TestLogShipper:
    @pytest.fixture
    def objects(self):
        return FakeObjectStore()

    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "log"

    def shipper(self, objects, path, file) -> LogShipper:
        return LogShipper(objects, Journal(path), file, job_id="ftjob-1", attempt=1, node_index=0)

    def stored(self, objects) -> bytes:
        keys = [layout.log("ftjob-1", 1, 0, number) for number in range(len(objects.objects))]
        return b"".join(objects.objects[key] for key in keys)

    async def test_stores_what_is_new(self, objects, path, file):
        shipper = self.shipper(objects, path, file)
        for text in ("one\n", "one\ntwo\n"):
            file.write_text(text)
            await shipper.ship()
            await shipper.ship()
        assert list(objects.objects.values()) == [b"one\n", b"two\n"]

    async def test_continues_after_a_restart(self, objects, path, file):
        file.write_text("one\n")
        await self.shipper(objects, path, file).ship()
        file.write_text("one\ntwo\n")
        await self.shipper(objects, path, file).ship()
        assert self.stored(objects) == b"one\ntwo\n"

    async def test_a_chunk_that_was_fixed_but_not_stored_is_stored_as_it_was(self, objects, path, file):
        file.write_text("one\n")
        away = AwayObjectStore()
        await self.shipper(away, path, file).ship()
        file.write_text("one\ntwo\n")
        await self.shipper(objects, path, file).ship()
        assert list(objects.objects.values()) == [b"one\n", b"two\n"]

    async def test_a_large_log_is_cut_into_chunks(self, objects, path, file, monkeypatch):
        monkeypatch.setattr(logs, "MAX_CHUNK_BYTES", 4)
        file.write_bytes(b"0123456789")
        await self.shipper(objects, path, file).ship()
        assert list(objects.objects.values()) == [b"0123", b"4567", b"89"]

    async def test_two_calls_at_once_store_everything_once(self, objects, path, file):
        file.write_text("one\n")
        shipper = self.shipper(objects, path, file)
        await asyncio.gather(shipper.ship(), shipper.ship())
        assert self.stored(objects) == b"one\n"


class AwayObjectStore(FakeObjectStore):
    async def put_bytes(self, key: str, data: bytes) -> str:
        raise StorageUnavailable(key)
