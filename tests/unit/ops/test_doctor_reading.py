"""What the doctor makes of the objects in S3 and of the records of a topic."""

import hashlib

import pytest

from ops.connection import Connection
from ops.doctor.audit import PARALLEL, _split, audit_problems
from ops.doctor.objects import read_store
from ops.doctor.topics import entry_of
from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.specification import Method
from shared.messaging.delivery import read
from shared.messaging.login import Login
from shared.partition import Partition
from shared.record import Record
from shared.storage.objects import put_manifest
from shared.storage.testing import FakeObjectStore
from tests.builders import NOON, a_sha, delivered
from tests.unit.scheduler import incoming

MANIFEST = layout.checkpoint("ftjob-1", 1, 20)
CONTENT = b"weights"
SHA = hashlib.sha256(CONTENT).hexdigest()
PART = layout.checkpoint("ftjob-1", 1, 20, layout.part(SHA))


@pytest.fixture
async def objects() -> FakeObjectStore:
    """One bundle of one part."""
    store = FakeObjectStore()
    await store.put_bytes(PART, CONTENT)
    manifest = BundleManifest(
        job_id="ftjob-1",
        attempt=1,
        step=20,
        world_size=1,
        method=Method.LORA,
        base_sha=a_sha("tiny"),
        dataset_version=a_sha("dataset"),
        config_hash=a_sha("config"),
        parts=(FileEntry(path="state.json", size_bytes=len(CONTENT), sha256=SHA),),
    )
    await put_manifest(store, MANIFEST, manifest)
    return store


class TestStore:
    async def test_it_knows_sizes_manifests_and_what_they_name(self, objects):
        store = await read_store(objects, deep=True, say=lambda line: None)
        assert store.sizes[PART] == len(CONTENT)
        assert [(part.key, part.sha256) for part in store.manifests[MANIFEST].parts] == [(PART, SHA)]
        assert store.corrupt == {}

    async def test_bytes_are_read_only_where_it_goes_deep(self, objects):
        await objects.delete([PART])
        await objects.put_bytes(PART, b"WEIGHTS")
        assert (await read_store(objects, deep=False, say=lambda line: None)).corrupt == {}
        store = await read_store(objects, deep=True, say=lambda line: None)
        assert list(store.corrupt) == [PART]

    async def test_what_is_no_manifest_is_kept_with_the_reason(self, objects):
        key = layout.checkpoint("ftjob-2", 1, 1)
        await objects.put_bytes(key, b"{}")
        store = await read_store(objects, deep=False, say=lambda line: None)
        assert store.manifests[key].problem.startswith("no manifest: ")

    async def test_a_bundle_that_is_deleted_meanwhile_is_gone(self, objects):
        class Deleting(FakeObjectStore):
            """Its parts go between the listing and the reading of the manifest, and the manifest after it."""

            async def list_objects(self, prefix):
                return [head for head in await objects.list_objects(prefix) if head.key != PART]

            async def get_bytes(self, key, **options):
                return await objects.get_bytes(key, **options)

            async def head(self, key):
                return None

        store = await read_store(Deleting(), deep=False, say=lambda line: None)
        assert store.manifests == {}

    async def test_a_part_that_is_just_missing_is_reported(self, objects):
        await objects.delete([PART])
        store = await read_store(objects, deep=False, say=lambda line: None)
        assert PART not in store.sizes
        assert MANIFEST in store.manifests


class TestEntries:
    def test_a_fact_that_an_invariant_reads_keeps_its_message(self):
        entry = entry_of(delivered(incoming.verified()))
        assert (entry.topic, entry.type, entry.key, entry.job_id) == (
            "checkpoint.events",
            "CheckpointVerified",
            "ftjob-1",
            "ftjob-1",
        )
        assert entry.message == incoming.verified()
        assert (entry.writer, entry.sequence, entry.time) == ("test", 1, NOON)

    def test_of_others_only_the_digest_stays(self):
        passed = incoming.eval_passed()
        entry = entry_of(delivered(passed))
        assert (entry.message, entry.job_id) == (None, "ftjob-1")
        assert entry.sha256 == hashlib.sha256(passed.model_dump_json().encode()).digest()

    def test_what_cannot_be_read_keeps_its_place(self):
        entry = entry_of(read(Record("job.events", 2, 41, b"ftjob-1", (), b"{}")))
        assert (entry.location, entry.type, entry.writer) == ("job.events/2@41", "", "")


class TestAudit:
    async def test_without_the_auditor_s_key_it_says_that_nothing_was_checked(self, objects):
        lines = []
        connection = Connection("", "", "", Login("", "", ""))
        assert await audit_problems(connection, objects, say=lines.append) == ()
        assert lines == [
            "audit: RETUNE_AUDIT_PUBLIC_KEY_FILE names no file, so the audit chain is not checked"
        ]

    @pytest.mark.parametrize("num_topics", [0, 1, 5, 40])
    def test_every_partition_is_read_once_and_a_topic_by_one_reader(self, num_topics):
        partitions = [Partition(f"topic-{number}", each) for number in range(num_topics) for each in range(3)]
        parts = list(_split({partition: [] for partition in partitions}))
        assert len(parts) == min(PARALLEL, num_topics)
        assert sorted(partition for part in parts for partition in part) == sorted(partitions)
        topics = [{partition.topic for partition in part} for part in parts]
        assert sum(map(len, topics)) == num_topics
