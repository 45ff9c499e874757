"""I7, I9, I10 and I11 on broken histories."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops.doctor.history import Checkpoint, DeviceLease, Generation, Job, Manifest, Node
from ops.doctor.objects import parts_of
from schemas import layout
from tests.builders import NOON, TENANT, a_bundle, a_file_ref, a_sha
from tests.unit.ops.histories import (
    EMERGENCY,
    MODEL,
    READ_AT,
    SERVED,
    a_history,
    a_model,
    a_replica,
    a_route,
    a_snapshot,
    a_store,
    a_verdict,
    alarms,
    bundle_key,
    capacity,
    the_story,
)

PART = bundle_key(EMERGENCY, "parts/1")


def with_store(**changes):
    return a_history(store=replace(a_store(), **changes))


def with_sizes(changes):
    sizes = {**a_store().sizes, **changes}
    return with_store(sizes={key: size for key, size in sizes.items() if size is not None})


class TestPartsWhole:
    @pytest.mark.parametrize(("size", "found"), [(None, "nothing"), (99, "99 bytes")])
    def test_a_part_is_not_what_its_manifest_says(self, size, found):
        (finding,) = alarms(with_sizes({PART: size}))["I7"]
        assert (finding.where, finding.found) == (PART, found)

    def test_a_part_whose_bytes_are_others(self):
        (finding,) = alarms(with_store(corrupt={PART: "sha256 differs"}))["I7"]
        assert (finding.where, finding.found) == (PART, "sha256 differs")

    @pytest.mark.parametrize(
        "key",
        [
            bundle_key(EMERGENCY),
            layout.dataset(a_sha("dataset")),
            layout.base_model(a_sha("tiny")),
            layout.model(MODEL.digest),
        ],
    )
    def test_a_manifest_that_must_be_there(self, key):
        store = a_store()
        manifests = {name: manifest for name, manifest in store.manifests.items() if name != key}
        sizes = {
            name: size for name, size in store.sizes.items() if not name.startswith(key.rpartition("/")[0])
        }
        (finding,) = alarms(with_store(manifests=manifests, sizes=sizes))["I7"]
        assert (finding.where, finding.found) == (key, "nothing")

    def test_what_was_announced_while_s3_was_listed_may_be_missing(self):
        history = a_history()
        bundle = a_bundle(30)
        new = Checkpoint("ftjob-1", bundle, "verified")
        snapshot = a_snapshot(checkpoints=(*history.snapshot.checkpoints, new))
        assert "I7" in alarms(replace(history, snapshot=snapshot))
        verified = next(entry for entry in history.entries if entry.type == "CheckpointVerified")
        fact = verified.message.model_copy(update={"bundle": bundle})
        late = replace(verified, event_id="late", offset=9, time=READ_AT, message=fact)
        assert "I7" not in alarms(replace(history, snapshot=snapshot, entries=(*history.entries, late)))

    def test_an_expired_bundle_is_gone(self):
        gone = Checkpoint("ftjob-1", a_bundle(10), "expired")
        snapshot = a_snapshot(checkpoints=(*a_snapshot().checkpoints, gone))
        assert alarms(a_history(snapshot=snapshot)) == {}

    def test_another_manifest_than_was_verified(self):
        store = a_store()
        other = replace(store.manifests[bundle_key(EMERGENCY)], sha256=a_sha("other"))
        manifests = {**store.manifests, bundle_key(EMERGENCY): other}
        (finding,) = alarms(with_store(manifests=manifests))["I7"]
        assert finding.found == f"sha256 {a_sha('other')[:16]}"

    def test_what_should_be_a_manifest_is_none(self):
        key = "checkpoints/ftjob-9/a-ftjob-9-e1/1/manifest.json"
        manifests = {**a_store().manifests, key: Manifest(a_sha("x"), problem="no manifest: empty")}
        (finding,) = alarms(with_store(manifests=manifests))["I7"]
        assert finding.where == key

    def test_an_uploaded_file_without_its_bytes(self):
        (finding,) = alarms(with_sizes({layout.blob(a_file_ref().sha256): None}))["I7"]
        assert finding.expected == "1000 bytes of file-train.jsonl"

    def test_bytes_of_a_deleted_file(self):
        removed = frozenset({a_sha("deleted file")})
        key = layout.blob(a_sha("deleted file"))
        assert alarms(a_history(snapshot=a_snapshot(removed_bytes=removed))) == {}
        left = replace(with_sizes({key: 7}), snapshot=a_snapshot(removed_bytes=removed))
        (finding,) = alarms(left)["I7"]
        assert (finding.where, finding.found) == (key, "7 bytes")


class TestLineageWhole:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"job_id": "ftjob-9"}, "a job of tenant acme"),
            ({"tenant": "other"}, "a job of tenant other"),
            ({"config_hash": a_sha("other")}, f"{a_sha('config')[:16]} of job ftjob-1"),
            ({"dataset_version": a_sha("other")}, "one that ingest made"),
            ({"base_sha": a_sha("other")}, "a registered one"),
            ({"bundle": a_bundle(7)}, "a verified bundle of that job"),
            ({"eval_id": "ev-9"}, "one that took place"),
            ({"eval_id": None}, "one that took place"),
        ],
    )
    def test_the_way_back_is_broken(self, changes, expected):
        findings = alarms(a_history(snapshot=a_snapshot(models=(a_model(**changes),))))["I9"]
        assert expected in [finding.expected for finding in findings]

    @pytest.mark.parametrize(
        "changes",
        [{"state": "failed"}, {"state": "running"}, {"digest": a_sha("x")}, {"base_sha": a_sha("x")}],
    )
    def test_its_verdict_is_no_pass_of_exactly_this(self, changes):
        snapshot = a_snapshot(evaluations={"ev-1": a_verdict(**changes)})
        (finding,) = alarms(a_history(snapshot=snapshot))["I9"]
        assert finding.expected.startswith(f"a pass of digest {MODEL.digest[:16]}")

    def test_in_dev_it_needs_no_verdict(self):
        snapshot = a_snapshot(models=(a_model(stage="dev", eval_id=None),), routes=(), replicas=())
        assert alarms(a_history(snapshot=snapshot)) == {}


class TestServedAsApproved:
    def test_nobody_approved_what_is_routed(self):
        (finding,) = alarms(a_history(snapshot=a_snapshot(generations=())))["I10"]
        assert finding.expected == "an approval by the registry"

    def test_the_approval_names_another_version(self):
        other = Generation(TENANT, MODEL.full_name, 1, "mv-2", a_sha("other"))
        (finding,) = alarms(a_history(snapshot=a_snapshot(generations=(other,))))["I10"]
        assert finding.expected == "mv-2, as the registry approved"

    @pytest.mark.parametrize("state", ["failed", "inconclusive"])
    def test_what_is_routed_did_not_pass(self, state):
        snapshot = a_snapshot(evaluations={"ev-1": a_verdict(state=state)})
        assert len(alarms(a_history(snapshot=snapshot))["I10"]) == 1

    def test_what_is_routed_failed_since(self):
        snapshot = a_snapshot(models=(a_model(stage="dev"),))
        (finding,) = alarms(a_history(snapshot=snapshot))["I10"]
        assert finding.found == "mv-1, which is in dev"

    def test_it_is_routed_to_a_start_of_the_replica_that_is_over(self):
        snapshot = a_snapshot(routes=(a_route(replicas=(("serve-0", "i-0"),)),))
        (finding,) = alarms(a_history(snapshot=snapshot))["I10"]
        assert finding.found == "routed to serve-0 (i-0), which is unknown"

    def test_it_is_routed_where_it_is_not_loaded(self):
        snapshot = a_snapshot(replicas=(a_replica(loaded=frozenset()),))
        (finding,) = alarms(a_history(snapshot=snapshot))["I10"]
        assert finding.expected == f"{SERVED} loaded"

    def test_something_is_loaded_that_no_slot_serves(self):
        snapshot = a_snapshot(replicas=(a_replica(loaded=frozenset({SERVED, "old@1"})),))
        (finding,) = alarms(a_history(snapshot=snapshot))["I10"]
        assert finding.found == "old@1 loaded"


def job(state: str, attempt: int = 2) -> dict[str, Job]:
    return {"ftjob-1": Job("ftjob-1", TENANT, state, attempt, a_sha("config"))}


def nodes(count: int, *, at=NOON) -> tuple[Node, ...]:
    """Each on a machine of its own."""
    return tuple(Node("cpu-spot", at, machine) for machine in range(count))


class TestNoOrphans:
    @pytest.mark.parametrize("holder", ["booked", "training", "held"])
    @pytest.mark.parametrize(
        ("jobs", "reason"),
        [
            (job("succeeded"), "the job is succeeded"),
            (job("queued"), "the job is queued"),
            (job("running", attempt=3), "attempt 3 is the current one"),
            ({}, "there is no such job"),
        ],
    )
    def test_somebody_holds_what_is_over(self, holder, jobs, reason):
        snapshot = a_snapshot(jobs=jobs, **{holder: frozenset({("ftjob-1", 2)})})
        (finding,) = alarms(a_history(snapshot=snapshot))["I11"]
        assert finding.expected == f"closed: {reason}"

    def test_an_attempt_under_way_is_held(self):
        held = frozenset({("ftjob-1", 2)})
        snapshot = a_snapshot(jobs=job("running"), booked=held, training=held, held=held)
        assert "I11" not in alarms(a_history(snapshot=snapshot))

    def test_more_nodes_than_the_pool_has(self):
        (finding,) = alarms(a_history(snapshot=a_snapshot(nodes=nodes(3, at=READ_AT))))["I11"]
        assert (finding.found, finding.expected) == ("nodes allocated on 3 machines", "at most 2")

    def test_nodes_share_machines_and_a_drained_one_is_none_of_the_pool(self):
        drained = Node("cpu-spot", READ_AT, 2, is_drained=True)
        snapshot = a_snapshot(nodes=(*nodes(2, at=READ_AT), *nodes(1, at=READ_AT), drained))
        assert "I11" not in alarms(a_history(snapshot=snapshot))

    def test_a_pool_that_was_made_smaller_empties_by_itself(self):
        stream = the_story()
        stream.publish("provisioner", capacity(1))
        snapshot = a_snapshot(pools={"cpu-spot": 1}, nodes=nodes(2))
        assert "I11" not in alarms(stream.history(snapshot=snapshot))
        snapshot = a_snapshot(pools={"cpu-spot": 1}, nodes=nodes(2, at=NOON + timedelta(minutes=30)))
        assert "I11" in alarms(stream.history(snapshot=snapshot))

    def test_a_lease_that_is_over_or_that_its_holder_does_not_know(self):
        until = READ_AT + timedelta(minutes=5)
        lease = DeviceLease("lease-1", "evaluator", "cpu-spot", until)
        kept = a_snapshot(device_leases=(lease,), known_leases=frozenset({"lease-1"}))
        assert "I11" not in alarms(a_history(snapshot=kept))
        (finding,) = alarms(a_history(snapshot=replace(kept, known_leases=frozenset())))["I11"]
        assert finding.found == "unknown to evaluator"
        late = replace(lease, until=READ_AT - timedelta(minutes=2))
        (finding,) = alarms(a_history(snapshot=replace(kept, device_leases=(late,))))["I11"]
        assert finding.found.startswith("open since its end at")

    def test_parts_that_nobody_can_name(self):
        key = layout.checkpoint("ftjob-1", 1, 30, "parts/9")
        history = with_sizes({key: 5})
        (finding,) = alarms(history)["I11"]
        assert finding.found == f"1 parts without a manifest, first {key}"
        due = a_snapshot(sweeps_due=frozenset({("ftjob-1", 1)}))
        assert "I11" not in alarms(replace(history, snapshot=due))

    def test_parts_of_an_attempt_that_still_writes(self):
        history = with_sizes({layout.checkpoint("ftjob-1", 2, 30, "parts/9"): 5})
        snapshot = a_snapshot(watched={"ftjob-1": (2, True)})
        assert "I11" not in alarms(replace(history, snapshot=snapshot))


def test_the_parts_of_a_bundle_are_named_by_their_content():
    manifest = (
        '{"job_id": "ftjob-1", "attempt": 1, "step": 20, "world_size": 1, "method": "lora", '
        f'"base_sha": "{a_sha()}", "dataset_version": "{a_sha()}", "config_hash": "{a_sha()}", '
        f'"parts": [{{"path": "state.json", "size_bytes": 3, "sha256": "{a_sha("x")}"}}]}}'
    )
    (part,) = parts_of(bundle_key(EMERGENCY), manifest.encode())
    assert part.key == bundle_key(EMERGENCY, layout.part(a_sha("x")))
