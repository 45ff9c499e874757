from dataclasses import replace
from itertools import product

import pytest

from schemas import layout
from schemas.base import FailureClass, StartFrom
from schemas.job import (
    CancelJob,
    JobCancelled,
    JobPaused,
    JobQueued,
    JobStage,
    JobSubmitted,
    PauseJob,
    PauseReason,
    ResumeJob,
    RetryJob,
    SubmitJob,
)
from schemas.lifecycle import TERMINAL, JobState
from schemas.specification import DpoSpec, Method, Recipe, StageSpec
from services.scheduler.decide import attempt, commands, ending
from services.scheduler.decide.decision import View
from services.scheduler.decide.ending import artifact_fields
from services.scheduler.model import Base, DatasetState
from shared.errors import Refused
from tests.builders import (
    NOON,
    a_bundle,
    a_dataset,
    a_file_ref,
    a_job,
    a_job_spec,
    a_ledger,
    a_placement,
    a_sha,
    an_evaluation,
    capabilities,
)
from tests.unit.scheduler import incoming
from tests.unit.scheduler.job_history import History

VIEW = View(NOON, ledger=a_ledger())


def a_submission(**changes):
    fields = {"job_id": "ftjob-1", "tenant": "acme", "dataset_id": "ds-1", "spec": a_job_spec()}
    return SubmitJob(**fields | changes)


def submit(dataset=None, view=VIEW, **changes):
    return commands.submit(commands.admit(a_submission(**changes), None, dataset, now=NOON), view)


class TestSubmit:
    def test_it_validates_until_the_dataset_is_decided(self):
        decision = submit()
        assert decision.job.state is JobState.VALIDATING
        (fact,) = decision.events
        assert isinstance(fact, JobSubmitted)
        assert (fact.dataset_id, fact.submitted_at, fact.retry_of) == ("ds-1", NOON, None)

    def test_it_is_announced_with_all_that_was_asked_for(self):
        later = StageSpec(recipe=Recipe(method="dpo"), training_file=a_file_ref("pairs.jsonl"))
        spec = a_job_spec(later_stages=(later,))
        (fact,) = submit(spec=spec, later_dataset_ids=("ds-2",), retry_of="ftjob-0").events
        assert fact == JobSubmitted(
            job_id="ftjob-1",
            tenant="acme",
            dataset_id="ds-1",
            spec=spec,
            submitted_at=NOON,
            retry_of="ftjob-0",
            later_dataset_ids=("ds-2",),
            stage=JobStage(number=1, num_stages=2),
        )

    def test_it_queues_at_once_on_a_dataset_that_is_ready(self):
        decision = submit(a_dataset())
        assert decision.job.state is JobState.QUEUED
        assert [fact.type for fact in decision.events] == ["JobSubmitted", "JobQueued"]

    def test_it_fails_as_the_users_on_a_dataset_that_was_rejected(self):
        decision = submit(a_dataset(DatasetState.REJECTED))
        assert [fact.type for fact in decision.events] == ["JobSubmitted", "JobFailed"]
        assert decision.events[1].failure_class is FailureClass.USER

    def test_it_fails_as_nobodys_on_a_dataset_that_could_not_be_validated(self):
        fact = submit(a_dataset(DatasetState.REJECTED, code="dataset_infra")).events[1]
        assert (fact.failure_class, fact.code) == (FailureClass.INFRA, "dataset_infra")

    def test_it_fails_as_the_users_on_a_dataset_made_of_other_files(self):
        decision = submit(a_dataset(), spec=a_job_spec(holdout=a_file_ref("holdout.jsonl")))
        fact = decision.events[-1]
        assert (fact.failure_class, fact.code, fact.param) == ("user", "dataset_mismatch", "holdout")

    def test_a_dataset_that_does_not_name_its_files_is_to_be_submitted_again(self):
        with pytest.raises(Refused, match=r"dataset ds-1 does not say .*; submit it again") as refused:
            submit(a_dataset(files=None))
        assert refused.value.code == "dataset_mismatch"

    def test_a_base_model_that_has_other_files_now_is_refused(self):
        with pytest.raises(Refused, match="has other files now") as refused:
            commands.admit(a_submission(), None, None, base=Base(a_sha("newer")), now=NOON)
        assert (refused.value.code, refused.value.param) == ("stale_base", "spec.base_sha")
        for base in (None, Base(a_sha("tiny"))):
            assert commands.admit(a_submission(), None, None, base=base, now=NOON)

    def test_a_method_that_the_base_model_cannot_be_trained_with_is_refused(self):
        base = Base(a_sha("tiny"), capabilities(refused_methods={Method.LORA: "it has no linear layers"}))
        with pytest.raises(Refused, match="Nearest that works: method sft") as refused:
            commands.admit(a_submission(), None, None, base=base, now=NOON)
        assert (refused.value.code, refused.value.param) == ("method_not_for_base", "recipe.method")

    def test_what_is_not_compatible_is_refused_with_the_parameter(self):
        with pytest.raises(Refused, match="method lora learns no preferences") as refused:
            submit(spec=a_job_spec(recipe=Recipe(dpo=DpoSpec())))
        assert (refused.value.code, refused.value.param) == ("dpo_ignored", "recipe.dpo")

    def test_a_job_that_exists_is_not_made_again(self):
        with pytest.raises(Refused, match="job ftjob-1 exists already"):
            commands.admit(a_submission(), a_job(), None, now=NOON)

    def test_a_duplicate_is_named(self):
        view = View(NOON, ledger=a_ledger(), duplicate_of="ftjob-0")
        assert submit(a_dataset(), view).events[1].duplicate_of == "ftjob-0"

    def test_equal_recipes_on_one_dataset_have_one_configuration_hash(self):
        resolved = Recipe(learning_rate=2e-4, num_epochs=3, batch_size=2)
        hashes = {
            submit(a_dataset(), spec=a_job_spec(recipe=recipe)).job.plan.config_hash
            for recipe in (Recipe(), resolved, Recipe(seed=1))
        }
        assert len(hashes) == 2


class TestStart:
    """From what another job has trained."""

    START = StartFrom(name="ft:tiny:acme:x:1", job_id="ftjob-0", bundle=a_bundle(), digest=a_sha("model"))
    TRAINED_BY = a_job(JobState.SUCCEEDED, id="ftjob-0", evaluation=an_evaluation())

    def admit(self, trained_by, **changes):
        spec = a_job_spec(**{"start_from": self.START} | changes)
        return commands.admit(a_submission(spec=spec), None, a_dataset(), trained_by=trained_by, now=NOON)

    def test_the_whole_job_knows_it(self):
        queued = commands.submit(self.admit(self.TRAINED_BY), VIEW)
        scheduled = attempt.begin(queued.job, a_placement(), VIEW).events[0]
        assert scheduled.spec.start_from == self.START
        assert scheduled.resume is None
        assert artifact_fields(queued.job, a_bundle(step=20))["started_from"] == self.START

    @pytest.mark.parametrize(
        ("trained_by", "changes", "code", "param"),
        [
            (None, {}, "unknown_start", "spec.start_from.job_id"),
            (a_job(tenant="other"), {}, "unknown_start", "spec.start_from.job_id"),
            (a_job(spec=a_job_spec(base_sha=a_sha("another"))), {}, "other_base", "spec.base_sha"),
            (
                TRAINED_BY,
                {"start_from": START.model_copy(update={"digest": a_sha("another")})},
                "unknown_start",
                "spec.start_from.digest",
            ),
            (TRAINED_BY, {"recipe": Recipe(method=Method.SFT)}, "other_weights", "spec.recipe.method"),
        ],
    )
    def test_what_it_cannot_start_from_is_refused_by_name(self, trained_by, changes, code, param):
        with pytest.raises(Refused) as refused:
            self.admit(trained_by, **changes)
        assert (refused.value.code, refused.value.param) == (code, param)

    def test_the_name_of_what_it_cannot_start_from_is_in_the_words(self):
        with pytest.raises(Refused, match="and ft:tiny:acme:x:1 is an adapter"):
            self.admit(self.TRAINED_BY, recipe=Recipe(method=Method.SFT))


HOSTILE_IDS = {
    "up": "..",
    "out of the folder": "x/../../../../etc/evil",
    "absolute": "/etc/evil",
    "slash": "a/b",
    "nul": "ftjob-\0",
    "line end": "ftjob-1\n",
    "space": "ftjob 1",
    "unicode": "ftjob-é",
    "look-alike": "ftjob-１",
    "upper case": "FTJOB-1",
    "leading dash": "-rf",
    "trailing dash": "ftjob-",
    "dot": "ftjob.1",
    "shell": "$(id)",
    "too long by one": "a" * 41,
    "200 characters": "a" * 200,
    "empty": "",
}


class TestIds:
    """They become folders, keys and host names."""

    @pytest.mark.parametrize("param", ["job_id", "dataset_id", "retry_of"])
    def test_a_submission_with_a_bad_one_is_refused_by_name(self, param):
        for hostile in HOSTILE_IDS.values():
            self.require_refusal(param, lambda id_=hostile: submit(**{param: id_}))

    def test_so_is_one_of_a_later_stage(self):
        for hostile in HOSTILE_IDS.values():
            self.require_refusal(
                "later_dataset_ids", lambda id_=hostile: submit(later_dataset_ids=("ds-2", id_))
            )

    def test_so_is_a_retry_under_a_bad_one(self):
        failed = a_job(JobState.FAILED)
        for hostile in HOSTILE_IDS.values():
            self.require_refusal("new_job_id", lambda id_=hostile: commands.like(failed, incoming.retry(id_)))

    def require_refusal(self, param, ask):
        try:
            admitted = ask()
        except Refused as error:
            refusal = error
        else:
            pytest.fail(f"admitted as {admitted}")
        assert str(refusal).startswith(f"{param}: found ")
        assert (refusal.code, refusal.param) == (f"bad_{param}", param)


@pytest.mark.parametrize("job_id", ["a", "7", "ftjob-4f1c9a0b7d2e4f1c", "a" * 40, "a--b"])
def test_good_ids_are_admitted_and_name_attempts_to_the_end(job_id):
    assert submit(job_id=job_id).job.id == job_id
    assert len(layout.attempt_name(job_id, 99_999_999)) <= layout.MAX_LABEL


class TestRetry:
    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
    def test_it_stands_for_the_same_submission_under_a_new_name(self, state):
        original = a_job(state)
        new_job = commands.like(original, incoming.retry())
        assert (new_job.job_id, new_job.retry_of, new_job.dataset_id) == ("ftjob-2", "ftjob-1", "ds-1")
        assert new_job.spec == original.spec

    @pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.FAILED, JobState.CANCELLED}))
    def test_a_job_that_did_not_end_badly_is_refused(self, state):
        with pytest.raises(Refused, match=f"job ftjob-1 is {state}; expected failed or cancelled"):
            commands.like(a_job(state), incoming.retry())


class TestContinue:
    """A retry from where the job left off."""

    ASK = incoming.retry().model_copy(update={"from_checkpoint": True})
    FAILED = a_job(JobState.FAILED, verified=frozenset({a_bundle(20), a_bundle(10, attempt=2)}))

    def go_on(self, original):
        again, continued = commands.like(original, self.ASK), commands.continued(original, self.ASK)
        job = commands.admit(again, None, a_dataset(), continued=continued, now=NOON)
        return commands.submit(job, VIEW)

    def test_the_first_attempt_resumes_from_the_newest_bundle_of_that_job(self):
        queued = self.go_on(self.FAILED)
        newest = a_bundle(10, attempt=2).model_copy(update={"job_id": "ftjob-1"})
        assert queued.events[0].resume == newest
        scheduled = attempt.begin(queued.job, a_placement(), VIEW)
        fact = scheduled.events[0]
        assert (fact.attempt, fact.resume, fact.config_hash) == (1, newest, self.FAILED.plan.config_hash)
        own = replace(scheduled.job, verified=scheduled.job.verified | {a_bundle(11)})
        assert own.resume == a_bundle(11)

    def test_what_continues_a_job_that_continued_one_names_who_wrote_the_bundle(self):
        ended = replace(self.go_on(self.FAILED).job, id="ftjob-3", state=JobState.CANCELLED)
        ask = self.ASK.model_copy(update={"job_id": "ftjob-3"})
        assert commands.continued(ended, ask).resume.job_id == "ftjob-1"
        assert ending.cancelled(replace(ended, state=JobState.QUEUED), "user").events[0].artifact is None

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"verified": frozenset()}, "no_checkpoint"),
            ({"verified": frozenset({a_bundle(FAILED.plan.num_steps)})}, "nothing_left"),
            ({"plan": replace(FAILED.plan, config_hash=a_sha("another"))}, "other_configuration"),
        ],
    )
    def test_where_it_cannot_it_is_refused_by_name(self, changes, code):
        with pytest.raises(Refused) as refused:
            self.go_on(replace(self.FAILED, **changes))
        assert (refused.value.code, refused.value.param) == (code, "from_checkpoint")
        again = commands.continued(replace(self.FAILED, **changes), incoming.retry())
        assert again == commands.FROM_THE_BEGINNING


class TestTooLate:
    @pytest.mark.parametrize(
        ("state", "command"),
        [
            (JobState.EVALUATING, incoming.pause()),
            *product(sorted(TERMINAL), (incoming.cancel(), incoming.pause())),
        ],
    )
    def test_a_job_that_is_over_is_not_cancelled_and_a_trained_one_not_paused(self, state, command):
        with pytest.raises(Refused, match=f"{command.type}: job ftjob-1 is {state} already") as refused:
            History(a_job(state)).apply(command)
        assert refused.value.code == "too_late"

    def test_a_trained_job_is_cancelled_and_its_model_kept(self):
        cancelled = History(a_job(JobState.EVALUATING)).apply(incoming.cancel()).last(JobCancelled)
        assert (cancelled.artifact.bundle, cancelled.artifact.auto_deploy) == (incoming.FINAL, False)

    @pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.PAUSED}))
    def test_resume_is_refused_outside_paused(self, state):
        with pytest.raises(Refused, match=f"job ftjob-1 is {state}; expected paused") as refused:
            History(a_job(state)).apply(incoming.resume())
        assert refused.value.code == "not_paused"


@pytest.mark.parametrize("job", [None, a_job(tenant="other")], ids=["no job", "another tenant's job"])
@pytest.mark.parametrize(
    ("ask", "command"),
    [
        (commands.cancel, CancelJob(job_id="ftjob-1", tenant="acme")),
        (commands.pause, PauseJob(job_id="ftjob-1", tenant="acme")),
        (commands.resume, ResumeJob(job_id="ftjob-1", tenant="acme")),
        (lambda job, command, _: commands.like(job, command), RetryJob(**incoming.JOB, new_job_id="ftjob-2")),
    ],
    ids=["cancel", "pause", "resume", "retry"],
)
def test_a_job_that_is_not_the_tenants_is_unknown(ask, command, job):
    with pytest.raises(Refused, match="job ftjob-1 is not known to tenant acme") as refused:
        ask(job, command, VIEW)
    assert refused.value.code == "unknown_job"


@pytest.mark.parametrize("reason", PauseReason)
def test_a_pause_of_an_attempt_keeps_the_reason_that_was_given(reason):
    history = History(a_job(JobState.RUNNING)).apply(incoming.pause(reason))
    history.apply(incoming.stopped(), incoming.released())
    assert history.last(JobPaused).reason is reason


def test_a_pool_that_had_no_capacity_a_moment_ago_is_named_when_it_is_queued_again():
    job = a_job(JobState.PAUSED, no_capacity_at={"cpu-spot": NOON})
    fact = History(job).apply(incoming.resume()).last(JobQueued)
    assert fact.waiting_for.endswith("the engine had no capacity in cpu-spot, asked again soon")


def test_why_it_waits_is_said_when_it_is_queued():
    fact = submit(a_dataset(), View(NOON)).events[1]
    assert isinstance(fact, JobQueued)
    assert fact.waiting_for == "no pool can hold 1 device of one node (spot-first); known: none"
