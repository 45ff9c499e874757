"""Each row of the state machine's table, and how it is to be read."""

from datetime import timedelta

import pytest

from schemas.artifacts import DatasetCounts
from schemas.base import CapacityType, DeviceKind, FailureClass
from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobPaused,
    JobQueued,
    JobRequeued,
    JobScheduled,
    JobStopping,
    PauseReason,
    StopReason,
)
from schemas.lifecycle import TERMINAL, JobState
from schemas.specification import LoraSpec, Method, Recipe, Resources
from services.scheduler.decide.decision import StartOverdue, StopOverdue
from services.scheduler.model import Approval, DatasetState, Stop
from tests.builders import (
    NOON,
    a_bundle,
    a_dataset,
    a_dataset_ref,
    a_job,
    a_job_spec,
    a_placement,
    a_sha,
    a_stop,
    an_evaluation,
)
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

VALIDATING, QUEUED, PROVISIONING, RUNNING, STOPPING, PAUSED, EVALUATING, SUCCEEDED, FAILED, CANCELLED = (
    JobState
)
OPEN = [PROVISIONING, RUNNING]


def name(value):
    """A short id for a parameter."""
    if isinstance(value, Stop):
        return "-".join(filter(None, (value.reason, value.failure_class)))
    return getattr(value, "type", None) or str(value)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


class TestValidating:
    def test_a_ready_dataset_queues_with_the_resolved_recipe_and_its_number_of_steps(self):
        history = History(a_job(VALIDATING)).apply(a_dataset())
        assert (history.job.state, history.job.queued_at) == (QUEUED, NOON)
        assert history.job.plan.spec.recipe.is_resolved
        # 2000 rows: 3 epochs; 400 windows: batches of 2.
        assert history.last(JobQueued).num_steps == 600
        assert history.last(JobQueued).config_hash == history.job.plan.config_hash
        reasons = history.last(JobQueued).recipe_reasons
        assert reasons.keys() == {"batch_size", "learning_rate", "num_epochs"}

    @pytest.mark.parametrize("state", [DatasetState.REJECTED, DatasetState.DELETED])
    def test_an_unusable_dataset_fails_the_job_as_the_users(self, state):
        history = History(a_job(VALIDATING)).apply(a_dataset(state, message="9 of 10 rows are bad"))
        fact = history.last(JobFailed)
        assert history.job.state is FAILED
        assert (fact.failure_class, fact.code, fact.param) == ("user", f"dataset_{state}", "training_file")
        assert fact.message == "9 of 10 rows are bad"

    def test_a_dataset_that_was_only_accepted_is_waited_for(self):
        assert History(a_job(VALIDATING)).apply(a_dataset(DatasetState.ACCEPTED)).job.state is VALIDATING

    def test_the_last_batch_of_an_epoch_may_be_smaller(self):
        counts = DatasetCounts(rows=2000, windows=401, tokens=90_000, loss_tokens=40_000)
        assert History(a_job(VALIDATING)).apply(a_dataset(counts=counts)).last(JobQueued).num_steps == 603

    def test_another_tenants_dataset_fails_the_job(self):
        history = History(a_job(VALIDATING)).apply(a_dataset(tenant="other"))
        assert history.last(JobFailed).message == "dataset ds-1 is not known to tenant acme"

    def test_a_dataset_for_another_base_model_fails_the_job(self):
        history = History(a_job(VALIDATING)).apply(a_dataset(base_sha=a_sha("other")))
        assert history.last(JobFailed).code == "dataset_mismatch"


class TestQueued:
    def test_capacity_begins_an_attempt(self):
        gang = {"nodes": 2, "devices_per_node": 8, "device": DeviceKind.CUDA}
        placement = a_placement("h100", capacity_type=CapacityType.ON_DEMAND, **gang)
        history = History(a_job(QUEUED, verified=frozenset({a_bundle(10)}))).schedule(placement)
        fact = history.last(JobScheduled)
        assert (history.job.state, history.job.attempt) == (PROVISIONING, 1)
        assert (fact.pool, fact.capacity_type, fact.nodes, fact.devices_per_node) == (
            "h100",
            "on-demand",
            2,
            8,
        )
        assert fact.device is DeviceKind.CUDA
        assert (fact.attempt, fact.resume, fact.base_sha) == (1, a_bundle(10), a_sha("tiny"))
        assert fact.spec.recipe.is_resolved
        assert (fact.grace_seconds, fact.start_deadline) == (30, NOON + timedelta(minutes=5))

    def test_each_attempt_has_the_next_number_and_forgets_the_facts_of_the_one_before(self):
        history = (
            History(a_job(PROVISIONING))
            .apply(incoming.lost(), incoming.released(), incoming.stopped())
            .schedule()
        )
        assert (history.job.attempt, history.job.facts.failure, history.job.facts.released_at) == (
            2,
            None,
            None,
        )

    def test_an_attempt_knows_but_its_resume_point_of_older_bundles(self):
        judged = (
            incoming.verified(a_bundle(10)),
            incoming.verified(a_bundle(20)),
            incoming.corrupt(a_bundle(30)),
        )
        job = History(a_job(QUEUED)).apply(*judged).schedule().job
        assert (job.verified, job.corrupt) == ({a_bundle(20)}, frozenset())

    def test_a_timer_watches_the_start(self):
        timer = History(a_job(QUEUED)).schedule().timers[-1]
        assert timer.payload == StartOverdue(job_id="ftjob-1", attempt=1)
        assert timer.at == NOON + timedelta(minutes=5, seconds=30)


@pytest.mark.parametrize("state", [VALIDATING, QUEUED, PAUSED])
class TestWithoutAttempt:
    def test_a_deleted_dataset_fails_the_job(self, state):
        history = History(a_job(state)).apply(a_dataset(DatasetState.DELETED))
        assert (history.job.state, history.last(JobFailed).code) == (FAILED, "dataset_deleted")

    def test_cancel(self, state):
        history = History(a_job(state)).apply(incoming.cancel())
        assert (history.job.state, history.types) == (CANCELLED, ["JobCancelled"])
        assert history.last(JobCancelled).artifact is None

    def test_pause(self, state):
        assert History(a_job(state)).apply(incoming.pause()).job.state is PAUSED


class TestPaused:
    def test_pausing_again_says_nothing(self):
        assert History(a_job(PAUSED)).apply(incoming.pause()).events == []

    def test_resume_queues_with_a_new_age(self):
        history = History(a_job(PAUSED)).later(hours=1).apply(incoming.resume())
        assert (history.job.state, history.types) == (QUEUED, ["JobQueued"])
        assert history.job.queued_at == NOON + timedelta(hours=1)

    def test_resume_ends_a_back_off(self):
        job = a_job(QUEUED, not_before=NOON + timedelta(hours=1))
        assert History(job).apply(incoming.pause(), incoming.resume()).job.not_before is None

    def test_resume_validates_while_the_dataset_is_not_ready(self):
        history = History(a_job(VALIDATING)).apply(incoming.pause(), incoming.resume())
        assert (history.job.state, history.types) == (VALIDATING, ["JobPaused", "JobSubmitted"])
        assert history.apply(a_dataset()).job.state is QUEUED

    def test_resume_fails_with_a_dataset_rejected_meanwhile(self):
        history = History(a_job(VALIDATING)).apply(incoming.pause(), a_dataset(DatasetState.REJECTED))
        assert history.job.state is PAUSED
        assert history.apply(incoming.resume()).types == ["JobPaused", "JobFailed"]

    def test_cancel_keeps_the_newest_verified_bundle(self):
        bundles = frozenset({a_bundle(10), a_bundle(20)})
        fact = History(a_job(PAUSED, verified=bundles)).apply(incoming.cancel()).last(JobCancelled)
        assert (fact.artifact.bundle, fact.last_step) == (a_bundle(20), 20)
        assert not fact.artifact.auto_deploy


class TestProvisioning:
    def test_no_capacity_requeues_without_cost(self):
        history = History(a_job(PROVISIONING)).later(seconds=1).apply(incoming.provisioning_failed())
        assert (history.job.state, history.job.requeues, history.job.queued_at) == (QUEUED, {}, NOON)
        assert history.job.no_capacity_at == {"cpu-spot": NOON + seconds(1)}
        assert history.last(JobQueued).waiting_for == "pool cpu-spot had no capacity: it says why"

    def test_another_failure_requeues_by_class(self):
        history = History(a_job(PROVISIONING)).apply(incoming.provisioning_failed("engine_error"))
        assert (history.job.state, history.job.requeues) == (QUEUED, {FailureClass.INFRA: 1})
        assert history.last(JobRequeued).failure_class is FailureClass.INFRA

    def test_another_failure_fails_once_the_budget_is_spent(self):
        job = a_job(PROVISIONING, requeues={FailureClass.INFRA: 5})
        history = History(job).apply(incoming.provisioning_failed("engine_error"))
        assert (history.job.state, history.last(JobFailed).code) == (FAILED, "infra")
        assert history.last(JobFailed).message == "it says why (requeued 5 times for class infra before)"

    def test_training_started_runs(self):
        history = History(a_job(PROVISIONING)).apply(incoming.started())
        assert (history.job.state, history.types) == (RUNNING, ["JobRunning"])

    def test_a_late_start_stops(self):
        history = History(a_job(PROVISIONING)).later(minutes=6)
        fact = history.apply(StartOverdue(job_id="ftjob-1", attempt=1)).last(JobStopping)
        assert (fact.reason, fact.failure_class) == ("failure", "infra")
        assert fact.deadline == history.now + seconds(30)

    @pytest.mark.parametrize(("state", "attempt"), [(PROVISIONING, 2), (RUNNING, 1), (QUEUED, 1)])
    def test_a_start_timer_of_another_time_does_nothing(self, state, attempt):
        job = a_job(state, attempt=attempt)
        assert History(job).apply(StartOverdue(job_id="ftjob-1", attempt=1)).events == []


@pytest.mark.parametrize("state", OPEN)
class TestProvisioningOrRunning:
    @pytest.mark.parametrize(
        ("what", "reason", "failure_class", "deadline"),
        [
            (incoming.pause(), StopReason.PAUSE, None, 45),
            (incoming.cancel(), StopReason.CANCEL, None, 45),
            (incoming.cancel("budget"), StopReason.BUDGET, None, 45),
            (incoming.preempted(deadline=NOON + seconds(77)), StopReason.PREEMPT, None, 77),
            (incoming.stopped(), StopReason.PREEMPT, None, 30),
            (incoming.lost(), StopReason.FAILURE, FailureClass.INFRA, 45),
            (incoming.failed(FailureClass.NUMERIC), StopReason.FAILURE, FailureClass.NUMERIC, 30),
        ],
        ids=name,
    )
    def test_a_stop_has_its_reason_and_deadline(self, state, what, reason, failure_class, deadline):
        job = a_job(state, spec=a_job_spec(resources=Resources(grace_seconds=45)))
        history = History(job).apply(what)
        fact = history.last(JobStopping)
        assert history.job.state is STOPPING
        assert (fact.attempt, fact.reason, fact.failure_class) == (1, reason, failure_class)
        assert fact.deadline == NOON + seconds(deadline)

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_corrupt_final_bundle_stops(self, state, order):
        history = History(a_job(state)).apply(*(incoming.completed(), incoming.corrupt())[::order])
        fact = history.last(JobStopping)
        assert (fact.reason, fact.failure_class, fact.deadline) == ("failure", "infra", NOON + seconds(30))

    def test_a_corrupt_bundle_that_is_not_the_final_one_stops_nothing(self, state):
        early = a_bundle(10)
        history = History(a_job(state)).apply(
            incoming.written(early), incoming.corrupt(early), incoming.completed()
        )
        assert history.job.state is state

    def test_the_grace_of_the_resources_is_the_deadline_of_a_pause(self, state):
        job = a_job(state, spec=a_job_spec(resources=Resources(grace_seconds=90)))
        assert History(job).apply(incoming.pause()).last(JobStopping).deadline == NOON + seconds(90)


class TestRunning:
    @pytest.mark.parametrize("order", [1, -1])
    def test_completed_and_verified_evaluates_in_either_order(self, order):
        history = History(a_job(RUNNING)).apply(*(incoming.completed(), incoming.verified())[::order])
        assert (history.job.state, history.types) == (EVALUATING, ["JobEvaluating"])

    @pytest.mark.parametrize("one", [incoming.completed(), incoming.verified()], ids=name)
    def test_one_of_both_is_not_enough(self, one):
        assert History(a_job(RUNNING)).apply(one).job.state is RUNNING

    def test_a_verdict_on_another_bundle_of_the_same_digest_is_not_enough(self):
        twin = a_bundle(600, attempt=2, name="bundle 1 600")
        assert (
            History(a_job(RUNNING)).apply(incoming.completed(), incoming.verified(twin)).job.state is RUNNING
        )

    def test_a_provisioning_failure_is_ignored(self):
        assert History(a_job(RUNNING)).apply(incoming.provisioning_failed("engine_error")).events == []

    def test_the_artifact_says_all_that_the_gate_and_the_registry_need(self):
        recipe = Recipe(lora=LoraSpec(rank=8))
        job = a_job(RUNNING, spec=a_job_spec(recipe=recipe, auto_deploy=False))
        fact = History(job).apply(incoming.completed(), incoming.verified()).last(JobEvaluating)
        assert (fact.attempt, fact.bundle, fact.dataset) == (1, incoming.FINAL, a_dataset_ref())
        assert (fact.kind, fact.rank, fact.full_name) == ("adapter", 8, "ft:tiny:acme:test:")
        assert (fact.base_model, fact.base_sha, fact.auto_deploy) == ("tiny", a_sha("tiny"), False)
        assert fact.config_hash == job.plan.config_hash
        assert fact.template_sha256 == a_sha("template")
        assert (fact.benchmarks, fact.suites) == (
            {"stdlib": a_sha("benchmark")},
            {"refusals": a_sha("suite")},
        )

    def test_all_weights_make_a_full_model_of_no_rank(self):
        job = a_job(RUNNING, spec=a_job_spec(recipe=Recipe(method=Method.SFT)))
        fact = History(job).apply(incoming.completed(), incoming.verified()).last(JobEvaluating)
        assert (fact.kind, fact.rank) == ("full", 0)


class TestStrongestReason:
    """cancel > budget > final failure > pause > rest, and the earlier deadline."""

    @pytest.mark.parametrize(
        ("held", "asked", "reason"),
        [
            (a_stop(StopReason.PREEMPT), incoming.pause(), StopReason.PAUSE),
            (a_stop(StopReason.FAILURE), incoming.pause(), StopReason.PAUSE),
            (a_stop(StopReason.PREEMPT), incoming.cancel("budget"), StopReason.BUDGET),
            (a_stop(StopReason.PAUSE), incoming.cancel("budget"), StopReason.BUDGET),
            (a_stop(StopReason.PAUSE), incoming.cancel(), StopReason.CANCEL),
            (a_stop(StopReason.BUDGET), incoming.cancel(), StopReason.CANCEL),
            (
                a_stop(StopReason.FAILURE, failure_class=FailureClass.USER),
                incoming.cancel(),
                StopReason.CANCEL,
            ),
        ],
        ids=name,
    )
    def test_a_stronger_reason_is_said_again(self, held, asked, reason):
        history = History(a_job(STOPPING, stop=held)).apply(asked)
        assert history.types == ["JobStopping"]
        assert history.job.run.stop.reason is reason

    @pytest.mark.parametrize(
        ("held", "asked"),
        [
            (a_stop(StopReason.CANCEL), incoming.cancel("budget")),
            (a_stop(StopReason.CANCEL), incoming.pause()),
            (a_stop(StopReason.BUDGET), incoming.pause()),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.USER), incoming.pause()),
            (a_stop(StopReason.PAUSE), incoming.pause(PauseReason.ALERT)),
            (a_stop(StopReason.PAUSE), incoming.preempted(deadline=NOON + seconds(60))),
            (a_stop(StopReason.PREEMPT), incoming.lost()),
            (a_stop(StopReason.PREEMPT), incoming.failed(FailureClass.USER)),
            (a_stop(StopReason.PREEMPT), incoming.provisioning_failed("engine_error")),
        ],
        ids=name,
    )
    def test_a_weaker_reason_changes_nothing(self, held, asked):
        history = History(a_job(STOPPING, stop=held)).apply(asked)
        assert (history.job.run.stop, history.events) == (held, [])

    def test_a_failure_is_final_once_its_budget_is_spent(self):
        job = a_job(STOPPING, stop=a_stop(StopReason.FAILURE), requeues={FailureClass.INFRA: 5})
        assert History(job).apply(incoming.pause()).job.run.stop.reason is StopReason.FAILURE

    def test_an_earlier_deadline_is_said_again_under_the_old_reason(self):
        early = NOON + seconds(3)
        fact = History(a_job(STOPPING, stop=a_stop(StopReason.CANCEL))).apply(
            incoming.preempted(deadline=early)
        )
        assert (fact.last(JobStopping).reason, fact.last(JobStopping).deadline) == ("cancel", early)

    def test_a_stronger_reason_does_not_put_the_deadline_off(self):
        history = (
            History(a_job(STOPPING, stop=a_stop(StopReason.PAUSE))).later(seconds=20).apply(incoming.cancel())
        )
        assert history.last(JobStopping).deadline == NOON + seconds(30)

    def test_of_several_notices_the_earliest_counts(self):
        history = History(a_job(RUNNING)).apply(
            incoming.preempted(deadline=NOON + seconds(20)),
            incoming.preempted(deadline=NOON + seconds(60)),
            incoming.preempted(deadline=NOON + seconds(10)),
        )
        assert [event.deadline for event in history.events] == [NOON + seconds(20), NOON + seconds(10)]


class TestStopping:
    @pytest.mark.parametrize(
        ("stop", "state", "fact"),
        [
            (a_stop(StopReason.PAUSE), PAUSED, "JobPaused"),
            (a_stop(StopReason.CANCEL), CANCELLED, "JobCancelled"),
            (a_stop(StopReason.BUDGET), CANCELLED, "JobCancelled"),
            (a_stop(StopReason.PREEMPT), QUEUED, "JobRequeued"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.INFRA), QUEUED, "JobRequeued"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.INTERNAL), QUEUED, "JobRequeued"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.PREEMPTED), QUEUED, "JobRequeued"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.NUMERIC), FAILED, "JobFailed"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.OOM), QUEUED, "JobRequeued"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.USER), FAILED, "JobFailed"),
            (a_stop(StopReason.FAILURE, failure_class=FailureClass.CANCELLED), FAILED, "JobFailed"),
        ],
        ids=name,
    )
    def test_the_reason_decides_what_becomes_of_the_job(self, stop, state, fact):
        history = History(a_job(STOPPING, stop=stop)).apply(incoming.released(), incoming.stopped())
        assert (history.job.state, history.types) == (state, [fact])

    def test_the_facts_carry_what_was_kept(self):
        early, late = a_bundle(10), a_bundle(20)
        messages = (
            incoming.written(early),
            incoming.verified(early),
            incoming.stopped(late),
            incoming.verified(late),
        )
        paused = History(a_job(STOPPING, stop=a_stop(StopReason.PAUSE))).apply(*messages, incoming.released())
        requeued = History(a_job(STOPPING)).apply(*messages, incoming.released())
        cancelled = History(a_job(STOPPING, stop=a_stop(StopReason.BUDGET))).apply(
            *messages, incoming.released()
        )
        assert paused.last(JobPaused).resume == late
        assert (requeued.last(JobRequeued).resume, requeued.last(JobRequeued).attempt) == (late, 1)
        assert cancelled.last(JobCancelled).artifact.bundle == late
        assert cancelled.last(JobCancelled).reason == "budget"

    @pytest.mark.parametrize("missing", [0, 1, 2])
    def test_it_waits_for_the_nodes_the_last_fact_and_each_verdict(self, missing):
        messages = [incoming.released(), incoming.stopped(a_bundle(10)), incoming.verified(a_bundle(10))]
        late = messages.pop(missing)
        history = History(a_job(STOPPING)).apply(*messages)
        assert history.job.state is STOPPING
        assert history.apply(late).job.state is QUEUED

    def test_it_waits_for_the_verdict_on_every_bundle_that_was_written(self):
        history = History(a_job(RUNNING)).apply(
            incoming.written(a_bundle(10)), incoming.preempted(), incoming.stopped(), incoming.released()
        )
        assert history.job.state is STOPPING
        assert history.apply(incoming.corrupt(a_bundle(10))).job.state is QUEUED

    def test_nodes_may_be_released_before_the_stop(self):
        history = History(a_job(RUNNING)).apply(incoming.released(), incoming.failed(), incoming.stopped())
        assert (history.job.state, history.types) == (QUEUED, ["JobStopping", "JobRequeued"])

    @pytest.mark.parametrize("order", [1, -1])
    @pytest.mark.parametrize("reason", [StopReason.PAUSE, StopReason.PREEMPT, StopReason.FAILURE])
    def test_completion_overtakes_a_stop(self, reason, order):
        job = a_job(STOPPING, stop=a_stop(reason))
        history = History(job).apply(*(incoming.completed(), incoming.verified())[::order])
        assert history.job.state is EVALUATING

    @pytest.mark.parametrize("reason", [StopReason.CANCEL, StopReason.BUDGET])
    def test_completion_does_not_overtake_a_cancel(self, reason):
        history = History(a_job(STOPPING, stop=a_stop(reason))).apply(
            incoming.completed(), incoming.verified()
        )
        assert history.job.state is STOPPING
        fact = history.apply(incoming.released()).last(JobCancelled)
        assert (fact.artifact.bundle, fact.last_step) == (incoming.FINAL, 600)


STALE = [
    incoming.started(),
    incoming.completed(),
    incoming.stopped(),
    incoming.failed(),
    incoming.lost(),
    incoming.preempted(),
    incoming.released(),
    incoming.written(),
    incoming.provisioning_failed("engine_error"),
]


@pytest.mark.parametrize("state", [PROVISIONING, RUNNING, STOPPING, EVALUATING])
def test_a_fact_of_another_attempt_is_recorded_as_ignored(state):
    job = a_job(state, attempt=2)
    for fact in STALE:
        history = History(job).apply(fact)
        assert (history.job, history.events, history.ignored) == (job, [], ["attempt 1, present: 2"]), fact


@pytest.mark.parametrize("state", [QUEUED, PAUSED])
def test_late_facts_of_the_last_attempt_move_nothing(state):
    for fact in STALE:
        history = History(a_job(state, run=a_job(STOPPING).run)).apply(fact)
        assert (history.job.state, history.events) == (state, []), fact


EVERYTHING = [
    *STALE,
    incoming.verified(),
    incoming.corrupt(),
    incoming.eval_passed(),
    incoming.eval_failed(),
    incoming.eval_inconclusive(),
    incoming.registered(),
    incoming.promoted(),
    incoming.promotion_refused(),
    incoming.stale(),
    incoming.approved(),
    incoming.deployment(),
    a_dataset(DatasetState.DELETED),
]


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_terminal_state_absorbs_and_records(state):
    waited_for = an_evaluation(approval=Approval(incoming.MODEL.full_name, 1))
    job = a_job(state, evaluation=waited_for, run=a_job(RUNNING).run)
    for fact in EVERYTHING:
        history = History(job).apply(fact)
        assert (history.job, history.events, history.ignored) == (job, [], [f"the job is {state}"]), fact


@pytest.mark.parametrize("timer", [StartOverdue, StopOverdue])
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_terminal_state_absorbs_timers(state, timer):
    job = a_job(state, run=a_job(STOPPING).run)
    assert History(job).later(days=1).apply(timer(job_id="ftjob-1", attempt=1)).job == job
