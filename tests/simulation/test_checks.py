"""Each check alarms when it is fed a history that is broken in its way, and is silent on the whole one."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import a_booking, a_bundle, a_sha
from tests.simulation import liveness
from tests.simulation.log import Record
from tests.simulation.users import Users
from tests.simulation.violation import Violation
from tests.simulation.world import World

JOB = "job-1"


@pytest.fixture
def world():
    world = World(1)
    world.run(1.0)
    yield world
    world.clock.close()


def fact(kind: str, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"type": kind, "job_id": JOB, "stage": None, **fields})


def emit(world: World, *facts: SimpleNamespace, claim: str = "") -> None:
    envelope = SimpleNamespace(id=claim, topic=SimpleNamespace(name="agent.reports")) if claim else None
    world.checker.emitted(SimpleNamespace(events=facts, envelope=envelope))  # type: ignore[arg-type]


def scheduled(attempt: int = 1, resume: Any = None) -> list[SimpleNamespace]:
    return [
        fact("JobSubmitted"),
        fact("JobQueued"),
        fact("JobScheduled", attempt=attempt, resume=resume),
    ]


def verify(world: World, step: int = 4, *, is_heard: bool = True) -> Any:
    """A bundle of attempt 1 that is whole, verified and, mostly, known to the scheduler."""
    ref = world.storage.put(JOB, 1, step)
    emit(world, fact("CheckpointVerified", bundle=ref))
    if is_heard:
        world.checker.jobs.heard_verified(fact("CheckpointVerified", bundle=ref))
    return ref


ENDED = fact("TrainingStopped", attempt=1)
RELEASED = fact("NodesReleased", attempt=1)
FAILED = fact("JobFailed", attempt=1)

BROKEN: dict[str, tuple[str, list[SimpleNamespace]]] = {
    "moved out of a terminal state": ("illegal transition", [*scheduled(), FAILED, fact("JobQueued")]),
    "queued before it was submitted": ("illegal transition", [fact("JobQueued")]),
    "the epoch jumped": ("epoch", scheduled(attempt=2)),
    "the epoch of a later fact is old": ("epoch", [*scheduled(), fact("JobRunning", attempt=0)]),
    "began from what nobody verified": ("resume point", scheduled(resume=a_bundle())),
    "evaluated what nobody verified": (
        "unverified artifact",
        [*scheduled(), fact("JobRunning", attempt=1), fact("JobEvaluating", attempt=1, bundle=a_bundle())],
    ),
    "closed twice": ("closed attempt", [ENDED, ENDED]),
    "a fact after the last one": ("closed attempt", [ENDED, fact("TrainingStarted", attempt=1)]),
    "a false verdict": ("false verdict", [fact("CheckpointVerified", bundle=a_bundle())]),
    "released twice": ("released twice", [RELEASED, RELEASED]),
    "not provisioned after its release": (
        "released twice",
        [RELEASED, fact("ProvisioningFailed", attempt=1)],
    ),
    "nodes after the release": ("late nodes", [RELEASED, fact("NodesProvisioned", attempt=1)]),
    "generations with a gap": (
        "generation",
        [fact("DeploymentWithdrawn", tenant="acme", slot="s", generation=2)],
    ),
    "served what was not approved": (
        "not approved",
        [fact("DeploymentReady", tenant="acme", slot="s", generation=1, digest=a_sha("x"))],
    ),
    "two verdicts": (
        "two verdicts",
        [fact("EvalFailed", eval_id="ev-1"), fact("EvalInconclusive", eval_id="ev-1")],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_alarms(world, name):
    invariant, facts = BROKEN[name]
    emit(world, *facts[:-1])
    with pytest.raises(Violation, match=rf"^{invariant}: "):
        emit(world, facts[-1])


def test_the_resume_point_is_the_newest_that_is_known(world):
    older, newer = verify(world, 4), verify(world, 8)
    emit(world, *scheduled()[:2])
    with pytest.raises(Violation, match=r"^resume point: "):
        emit(world, fact("JobScheduled", attempt=1, resume=older))
    world.checker.jobs.last[JOB] = "JobQueued"
    world.checker.jobs.epochs[JOB] = 0
    emit(world, fact("JobScheduled", attempt=1, resume=newer))


def test_what_is_evaluated_is_whole_in_s3(world):
    bundle = verify(world)
    del world.storage.bundles[JOB, 1, bundle.step]
    emit(world, *scheduled(resume=bundle), fact("JobRunning", attempt=1))
    with pytest.raises(Violation, match=r"^lost artifact: "):
        emit(world, fact("JobEvaluating", attempt=1, bundle=bundle))


def test_a_bundle_is_written_once_and_by_one_process(world):
    emit(world, fact("CheckpointWritten", attempt=1, bundle=a_bundle(4)), claim="node#1-1")
    with pytest.raises(Violation, match=r"^two writers: "):
        emit(world, fact("CheckpointWritten", attempt=1, bundle=a_bundle(8)), claim="node#2-1")
    with pytest.raises(Violation, match=r"^written twice: "):
        emit(world, fact("CheckpointWritten", attempt=1, bundle=a_bundle(4)), claim="node#1-2")


def test_claims_of_an_old_epoch_make_no_facts(world):
    emit(world, fact("TrainingStarted", attempt=2), claim="node#1-1")
    with pytest.raises(Violation, match=r"^old epoch: "):
        emit(world, fact("TrainingStarted", attempt=1), claim="node#2-1")


def test_a_fact_of_an_old_epoch_changes_no_job(world):
    kernel = world.kernels["scheduler"]
    record: Any = SimpleNamespace(
        id="e",
        type="NodeLost",
        key=JOB,
        topic=SimpleNamespace(name="node.events"),
        message=fact("", attempt=1),
    )
    kernel.tables.put("job", JOB, SimpleNamespace(attempt=2))
    kernel.tables.commit()
    kernel.tables.put("job", JOB, SimpleNamespace(attempt=2, changed=True))
    with pytest.raises(Violation, match=r"^old epoch: "):
        world.checker.applies(kernel, record)


def test_a_record_is_applied_once(world):
    kernel = world.kernels["registry"]
    record: Any = SimpleNamespace(
        id="e", type="EvalPassed", key="k", topic=SimpleNamespace(name="eval.events")
    )
    world.checker.after(kernel, record)
    with pytest.raises(Violation, match=r"^applied twice: "):
        world.checker.after(kernel, record)


def test_nodes_are_gone_when_they_are_called_released(world):
    world.engine.attempts["a-job-1-e1"] = []
    with pytest.raises(Violation, match=r"^nodes left: "):
        emit(world, RELEASED)


def test_a_lease_stays_where_it_is_and_has_its_devices_alone(world):
    at = {"pool": "spot", "machine": 0, "devices": (0,)}
    emit(world, fact("DevicesLeased", lease_id="a", **at))
    emit(world, fact("DevicesLeased", lease_id="a", **at))
    with pytest.raises(Violation, match=r"^capacity: b and a have"):
        emit(world, fact("DevicesLeased", lease_id="b", **at))
    emit(world, fact("DeviceLeaseEnded", lease_id="b", pool="spot"))
    with pytest.raises(Violation, match=r"^lease moved: "):
        emit(world, fact("DevicesLeased", lease_id="a", **at | {"devices": (1,)}))


def test_both_ledgers_agree_and_stay_within_the_pool(world):
    provisioner, scheduler = world.kernels["provisioner"], world.kernels["scheduler"]
    record: Any = SimpleNamespace(message=fact("JobScheduled", attempt=1, pool="spot"))
    provisioner.tables.put("holding", (JOB, 1), ("spot", ((0, (0, 1)), (1, (2, 3)))))
    with pytest.raises(Violation, match=r"^ledger: .* has not booked"):
        world.checker.nodes.reserved(provisioner, record)
    scheduler.tables.put("booking", (JOB, 1), ("spot", a_booking(0, 2, devices=2), "acme"))
    with pytest.raises(Violation, match=r"^ledger: .* holds"):
        world.checker.nodes.reserved(provisioner, record)
    scheduler.tables.put("booking", (JOB, 1), ("spot", a_booking(0, 1, devices=2), "acme"))
    world.checker.nodes.reserved(provisioner, record)
    with pytest.raises(Violation, match=r"^ledger: .* still holds"):
        world.checker.nodes.freed(JOB, 1)
    for leases, alarm in {
        ((1, (3,)),): "more than once",
        ((2, (4,)), (3, (6,))): "of 3 machines",
        ((2, (6,)),): "of other machines",
    }.items():
        provisioner.tables.put("holding", (JOB, 2), ("spot", leases))
        with pytest.raises(Violation, match=rf"^capacity: .* {alarm}"):
            world.checker.nodes.reserved(provisioner, record)


def test_nothing_is_promoted_or_approved_without_a_pass_on_the_present_base(world):
    verdict = SimpleNamespace(outcome="passed")
    version = SimpleNamespace(base_model="tiny", base_sha=a_sha("old"), verdict=verdict)
    tables = world.kernels["registry"].tables
    tables.put("version", "mv-1", version)
    tables.put("base_model", "tiny", SimpleNamespace(base_sha=a_sha("new")))
    promotion = fact("ModelPromoted", model_id="mv-1", digest=a_sha("x"), stage="staging")
    with pytest.raises(Violation, match=r"^not gated: "):
        emit(world, promotion)
    world.checker.models._passed.add(("mv-1", a_sha("x"), a_sha("old")))
    with pytest.raises(Violation, match=r"^stale base: "):
        emit(world, promotion)
    verdict.outcome = "failed"
    with pytest.raises(Violation, match=r"^not gated: .* the newest verdict is failed"):
        emit(world, promotion)


def test_success_needs_a_promotion_and_a_deployment(world):
    succeeded = {"fine_tuned_model": "ft:m", "model_id": "mv-1"}
    world.checker.jobs.last[JOB] = "JobEvaluating"
    with pytest.raises(Violation, match=r"^success: .* promoted"):
        emit(world, fact("JobSucceeded", promoted=True, deployed=False, **succeeded))
    world.checker.jobs.last[JOB] = "JobEvaluating"
    with pytest.raises(Violation, match=r"^success: .* never served"):
        emit(world, fact("JobSucceeded", promoted=False, deployed=True, **succeeded))


def test_a_node_trains_once(world):
    world.checker.training.child_started(JOB, 1, 0)
    with pytest.raises(Violation, match=r"^two children: "):
        world.checker.training.child_started(JOB, 1, 0)


def test_a_resume_point_that_is_gone_alarms(world):
    world.checker.jobs.epochs[JOB] = 2
    with pytest.raises(Violation, match=r"^resume point: .* not whole in S3"):
        world.checker.training.resume_missing(JOB, 2, a_bundle())


def test_only_hostile_records_are_parked(world):
    hostile, honest = (SimpleNamespace(id=name, type="T", key="k") for name in ("hostile", "honest"))
    world.checker.hostile.add("hostile")
    world.checker.parked(world.kernels["registry"], hostile, "why", None)  # type: ignore[arg-type]
    with pytest.raises(Violation, match=r"^parked: "):
        world.checker.parked(world.kernels["registry"], honest, "why", None)  # type: ignore[arg-type]


def test_a_runner_that_was_never_asked_to_stop_alarms(world):
    world.checker.training.stops_relayed[JOB, 1] = 0.0
    runner: Any = SimpleNamespace(
        job_id=JOB,
        attempt=1,
        name="n",
        alive=True,
        has_read_all=True,
        stop_request=SimpleNamespace(directive=None),
    )
    with pytest.raises(Violation, match=r"^stop not relayed: "):
        world.checker.nodes.ends(runner)


# In the end.


def test_peace_is_at_rest(world):
    Users(world).begin()
    world.run(60.0)
    liveness.run_to_rest(world)
    assert liveness.unfinished(world) == []


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda world: world.checker.jobs.last.update({JOB: "JobRunning"}), "job-1 is after JobRunning"),
        (lambda world: world.engine.attempts.update({"a-x-e1": []}), "the engine has a-x-e1"),
        (lambda world: world.kernels["provisioner"].tables.put("holding", 1, ("spot", 1)), "1 holds"),
        (lambda world: world.kernels["scheduler"].tables.put("booking", 1, ("spot", 1, "t")), "1 is booked"),
        (lambda world: world.kernels["registry"].outbox.rows.append(None), "in its outbox"),
        (lambda world: world.checker.models.approved.update({("t", "s"): {1: None}}), "not at generation 1"),
    ],
)
def test_what_is_left_is_named(world, break_it, sentence):
    break_it(world)
    assert any(sentence in each for each in liveness.unfinished(world))


def test_unrest_alarms_after_a_bounded_time(world, monkeypatch):
    monkeypatch.setattr(liveness, "WITHIN_SECONDS", 60.0)
    world.checker.jobs.last[JOB] = "JobQueued"
    with pytest.raises(Violation, match=r"^not at rest: "):
        liveness.run_to_rest(world)


@pytest.mark.parametrize(
    ("invariant", "break_it"),
    [
        ("not closed", lambda world: world.checker.jobs.scheduled.add((JOB, 1))),
        (
            "not released",
            lambda world: (
                world.checker.jobs.scheduled.add((JOB, 1)),
                world.checker.training.closed.update({(JOB, 1): "TrainingStopped"}),
            ),
        ),
        ("verdicts", lambda world: world.checker.jobs.evaluating.update({JOB: None})),
        ("not parked", lambda world: world.checker.hostile.add("hostile")),
    ],
)
def test_an_unfinished_story_alarms(world, invariant, break_it):
    break_it(world)
    with pytest.raises(Violation, match=rf"^{invariant}: "):
        liveness.finished(world)


def test_who_trains_on_beyond_the_deadline_alarms(world):
    world.engine.runners.append(
        SimpleNamespace(job_id=JOB, attempt=1, alive=True, has_read_all=True, began_at=0.0, name="n")  # type: ignore[arg-type]
    )
    world.checker.jobs.stops[JOB, 1] = SimpleNamespace(deadline=world.clock.utc)
    world.checker.training.stops_relayed[JOB, 1] = world.clock.now
    world.run(liveness.STOP_MARGIN_SECONDS - 1.0)
    liveness.stopped_in_time(world)
    world.run(2.0)
    with pytest.raises(Violation, match=r"^not stopped: "):
        liveness.stopped_in_time(world)


def test_the_kernel_parks_a_gap_and_all_behind_it(world):
    """A hostile story, told with a hole in it, holds back nothing but itself."""
    users = Users(world)
    for _ in range(3):
        users.hostile()
    world.run(400.0)
    parked = [(record.id, reason) for record, reason in world.kernels["scheduler"].consumer.parked]
    assert {event_id for event_id, _ in parked} == world.checker.hostile
    assert isinstance(world.kernels["scheduler"].consumer.parked[0][0], Record)
