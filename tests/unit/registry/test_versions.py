from dataclasses import replace
from datetime import UTC, datetime

import pytest

from schemas.base import BundleRef, DatasetRef, StartFrom
from schemas.evaluation import CheckResult, Criterion, EvalInconclusive
from schemas.gate import GateSpec
from schemas.job import JobEvaluating, StagePlan
from schemas.model import (
    ArchiveModel,
    DeploymentApproved,
    DeploymentWithdrawn,
    ModelArchived,
    ModelDemoted,
    ModelPromoted,
    ModelRegistered,
    PromoteModel,
    PromotionRefused,
    RegisterArtifact,
    Stage,
)
from schemas.specification import Recipe
from services.registry.decide import slots, versions
from services.registry.model import Approval, Slot, Verdict
from shared.errors import Refused
from shared.transitions import IllegalTransition
from tests.moves import moves_of
from tests.unit.registry.builders import BASE_SHA, GAIN, OTHER_SHA, SAFE, UNSAFE, a_version, failed, passed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DIGEST = "9" * 64


def an_artifact(**changes):
    fields = {
        "job_id": "ftjob-1",
        "tenant": "acme",
        "attempt": 2,
        "bundle": BundleRef(attempt=1, step=40, manifest_sha256="a" * 64),
        "dataset": DatasetRef(version="d" * 64, manifest_sha256="1" * 64),
        "config_hash": "e" * 64,
        "base_model": "tiny",
        "base_sha": BASE_SHA,
        "template_sha256": "f" * 64,
        "kind": "adapter",
        "rank": 8,
        "full_name": "ft:tiny:acme:support:",
        "auto_deploy": True,
        "holdout": None,
        "gate": GateSpec(),
        "benchmarks": {},
        "suites": {},
    }
    return JobEvaluating(**fields | changes)


def its_slot(version):
    return Slot(version.tenant, version.full_name)


def promote(version, *, current_sha=BASE_SHA, **fields):
    command = PromoteModel(model_id=version.model_id, tenant=version.tenant, approved_by="ann", **fields)
    return versions.promote(version, command, current_sha=current_sha)


def archive(version, *serving):
    command = ArchiveModel(model_id=version.model_id, tenant=version.tenant)
    return versions.archive(version, serving, command, now=NOON)


def test_lineage_names_what_training_started_from():
    start = StartFrom(name="ft:x", job_id="ftjob-0", bundle=an_artifact().bundle, digest=DIGEST)
    decision = versions.register(an_artifact(started_from=start), digest=DIGEST, cancelled=False)
    assert decision.version.started_from == decision.events[0].started_from == start


@pytest.mark.parametrize("loss", [None, 1.25])
def test_lineage_says_whether_the_checkpoint_is_the_best_or_the_last_one(loss):
    decision = versions.register(an_artifact(best_valid_loss=loss), digest=DIGEST, cancelled=False)
    assert decision.version.best_valid_loss == decision.events[0].best_valid_loss == loss


class TestAnotherCheckpoint:
    """Of a job that has made a version."""

    BUNDLE = BundleRef(attempt=1, step=20, manifest_sha256="9" * 64)
    MADE = versions.register(
        an_artifact(best_valid_loss=1.25, auto_deploy=True), digest=DIGEST, cancelled=False
    ).version

    def artifact(self, *job_versions, **changes):
        command = RegisterArtifact(job_id="ftjob-1", tenant="acme", bundle=self.BUNDLE)
        return versions.artifact_of_checkpoint(command.model_copy(update=changes), self.BUNDLE, job_versions)

    def test_is_announced_as_the_job_announced_its_own_but_nothing_deploys_it(self):
        artifact = self.artifact(self.MADE)
        assert (artifact.bundle, artifact.auto_deploy, artifact.best_valid_loss) == (self.BUNDLE, False, None)
        same = {"bundle", "auto_deploy", "best_valid_loss"}
        assert artifact.model_dump(exclude=same) == self.MADE.artifact.model_dump(exclude=same)

    def test_of_an_earlier_stage_has_the_lineage_up_to_there(self):
        stages = tuple(
            StagePlan(
                recipe=Recipe(),
                dataset=DatasetRef(version=letter * 64, manifest_sha256="1" * 64),
                config_hash=letter * 64,
                num_steps=20,
            )
            for letter in "bc"
        )
        made = versions.register(an_artifact(stages=stages), digest=DIGEST, cancelled=False)
        assert made.events[0].stages == stages
        artifact = self.artifact(made.version)
        assert (artifact.stages, artifact.dataset, artifact.config_hash) == (
            stages[:1],
            stages[0].dataset,
            "b" * 64,
        )

    @pytest.mark.parametrize(
        ("job_versions", "changes", "code", "param"),
        [
            ((), {}, "no_model", "job_id"),
            ((replace(MADE, artifact=None),), {}, "no_model", "job_id"),
            ((MADE,), {"tenant": "other"}, "no_model", "job_id"),
            ((MADE, replace(MADE, bundle=BUNDLE)), {}, "registered", "bundle"),
        ],
    )
    def test_is_refused_by_name_where_it_cannot_be(self, job_versions, changes, code, param):
        with pytest.raises(Refused) as refused:
            self.artifact(*job_versions, **changes)
        assert (refused.value.code, refused.value.param) == (code, param)


def test_a_checkpoint_with_the_weights_of_a_version_is_shown_which_one_it_is():
    version = versions.register(an_artifact(), digest=DIGEST, cancelled=False).version
    fact = versions.same_weights(version)
    assert (fact.job_id, fact.model_id, fact.code) == ("ftjob-1", version.model_id, "registered")
    assert f"step 40 of attempt 1 has the weights of model {version.full_name}" in fact.message


class TestRegister:
    def test_announces_a_dev_version_with_its_whole_lineage(self):
        decision = versions.register(
            an_artifact(), digest=DIGEST, cancelled=False, training_template_sha256="7" * 64
        )
        assert decision.events[0].training_template_sha256 == "7" * 64
        (fact,) = decision.events
        assert isinstance(fact, ModelRegistered)
        assert fact.full_name == "ft:tiny:acme:support:99999999"
        assert (fact.base_sha, fact.dataset_version, fact.config_hash) == (BASE_SHA, "d" * 64, "e" * 64)
        assert (fact.job_id, fact.bundle.step, fact.stage) == ("ftjob-1", 40, Stage.DEV)
        assert decision.version.eval_id is None

    def test_names_two_jobs_of_equal_digest_apart(self):
        first = versions.register(an_artifact(), digest=DIGEST, cancelled=False).version
        second = versions.register(an_artifact(job_id="ftjob-2"), digest=DIGEST, cancelled=False).version
        assert first.model_id != second.model_id
        assert first.full_name == second.full_name

    def test_never_deploys_the_model_of_a_cancelled_job_by_itself(self):
        assert versions.register(an_artifact(), digest=DIGEST, cancelled=True).version.auto_deploy is False
        assert versions.register(an_artifact(), digest=DIGEST, cancelled=False).version.auto_deploy is True


class TestOnEvalPassed:
    def test_promotes_to_staging_and_approves_the_full_name_for_the_waiting_job(self):
        version = a_version()
        decision = versions.on_eval_passed(version, its_slot(version), passed(version), current_sha=BASE_SHA)
        assert decision.version.stage is Stage.STAGING
        assert decision.version.eval_id == "eval-ftjob-1"
        assert decision.version.verdict == Verdict("eval-ftjob-1", "passed", (GAIN, SAFE), "", 1)
        promoted, approved = decision.events
        assert promoted == ModelPromoted(
            model_id=version.model_id,
            tenant="acme",
            job_id="ftjob-1",
            digest=version.digest,
            full_name=version.full_name,
            stage=Stage.STAGING,
            eval_id="eval-ftjob-1",
            has_holdout=True,
            approved_by=None,
            approval_reason="",
            accepted_without_holdout=False,
        )
        assert isinstance(approved, DeploymentApproved)
        assert decision.slots == (its_slot(version).approve(decision.version),)
        assert (approved.slot, approved.generation, approved.job_id) == (version.full_name, 1, "ftjob-1")

    def test_promotes_alone_where_nobody_asked_for_deployment(self):
        version = a_version(auto_deploy=False)
        decision = versions.on_eval_passed(version, its_slot(version), passed(version), current_sha=BASE_SHA)
        assert [type(event) for event in decision.events] == [ModelPromoted]
        assert decision.slots == ()

    def test_raises_the_generation_where_two_jobs_share_a_full_name(self):
        first = a_version(stage=Stage.STAGING)
        slot = slots.approve(its_slot(first), first, job_id=first.job_id).slot
        second = a_version(model_id="mv-ftjob-2", job_id="ftjob-2")
        decision = versions.on_eval_passed(second, slot, passed(second), current_sha=BASE_SHA)
        assert (decision.events[1].generation, decision.events[1].job_id) == (2, "ftjob-2")

    @pytest.mark.parametrize(
        ("code", "version_changes", "event_changes", "current_sha"),
        [
            ("stale", {}, {}, OTHER_SHA),
            ("stale", {}, {}, None),
            ("mismatch", {}, {"digest": "0" * 64}, BASE_SHA),
            ("mismatch", {}, {"base_sha": OTHER_SHA}, BASE_SHA),
            ("archived", {"archived_at": NOON}, {}, BASE_SHA),
        ],
    )
    def test_answers_every_other_pass_by_a_refusal(self, code, version_changes, event_changes, current_sha):
        version = a_version(**version_changes)
        event = passed(version, **event_changes)
        decision = versions.on_eval_passed(version, its_slot(version), event, current_sha=current_sha)
        (refused,) = decision.events
        assert isinstance(refused, PromotionRefused)
        assert (refused.code, refused.job_id) == (code, version.job_id)
        assert decision.version.stage is Stage.DEV

    def test_answers_a_second_pass_with_the_stage_it_has(self):
        version = a_version(stage=Stage.PRODUCTION)
        event = passed(version, eval_id="eval-later")
        decision = versions.on_eval_passed(version, its_slot(version), event, current_sha=BASE_SHA)
        (promoted,) = decision.events
        assert (promoted.stage, promoted.eval_id) == (Stage.PRODUCTION, "eval-later")


def inconclusive(version, **changes):
    return EvalInconclusive(**failed(version, reason="judge away").model_dump() | changes)


class TestOnEvalFailed:
    def test_leaves_the_version_in_dev_with_the_numbers(self):
        version = a_version()
        decision = versions.on_eval_failed(version, [], failed(version))
        assert decision.version.stage is Stage.DEV
        assert decision.events == ()
        assert decision.version.verdict == Verdict("eval-ftjob-1", "failed", (UNSAFE,), "safety", 1)

    @pytest.mark.parametrize("stage", [Stage.STAGING, Stage.PRODUCTION])
    def test_takes_a_gated_version_back_to_dev_and_empties_its_slots(self, stage):
        version = a_version(stage=stage)
        serving = slots.approve(its_slot(version), version, job_id=None).slot
        decision = versions.on_eval_failed(version, [serving], failed(version, eval_id="eval-again"))
        demoted, withdrawn = decision.events
        assert isinstance(demoted, ModelDemoted)
        assert (demoted.stage, demoted.eval_id) == (Stage.DEV, "eval-again")
        assert isinstance(withdrawn, DeploymentWithdrawn)
        assert "check safety failed (harmful refusals 0.12" in withdrawn.reason
        assert decision.version.stage is Stage.DEV
        assert decision.slots[0].desired is None

    def test_of_an_archived_version_is_only_recorded(self):
        version = a_version(stage=Stage.STAGING, archived_at=NOON)
        decision = versions.on_eval_failed(version, [], failed(version))
        assert (decision.events, decision.version.verdict.outcome) == ((), "failed")

    def test_is_made_good_by_a_later_pass_up_to_staging(self):
        version = a_version(stage=Stage.PRODUCTION)
        fallen = versions.on_eval_failed(version, [], failed(version)).version
        event = passed(fallen, eval_id="eval-good")
        decision = versions.on_eval_passed(fallen, its_slot(version), event, current_sha=BASE_SHA)
        assert (decision.version.stage, decision.version.eval_id) == (Stage.STAGING, "eval-good")


class TestOnEvalInconclusive:
    def test_is_kept_apart_from_a_failed_one(self):
        version = a_version()
        decision = versions.on_eval_inconclusive(version, inconclusive(version))
        assert decision.version.verdict == Verdict("eval-ftjob-1", "inconclusive", (UNSAFE,), "judge away", 1)

    def test_leaves_what_is_served_but_nothing_new_is_built_on_it(self):
        version = a_version(stage=Stage.STAGING)
        decision = versions.on_eval_inconclusive(version, inconclusive(version))
        assert (decision.version.stage, decision.events) == (Stage.STAGING, ())
        with pytest.raises(Refused, match="newest evaluation inconclusive"):
            versions.require_gated(decision.version)


class TestVerdictsOutOfOrder:
    """Each evaluation has its own key, so that an older verdict may come after a newer one."""

    def test_an_older_pass_does_not_undo_a_newer_failure(self):
        version = versions.on_eval_failed(a_version(), [], failed(a_version(), number=2)).version
        decision = versions.on_eval_passed(
            version, its_slot(version), passed(version, number=1), current_sha=BASE_SHA
        )
        (refused,) = decision.events
        assert (refused.code, decision.version) == ("outdated", version)

    def test_an_older_failure_does_not_undo_a_newer_pass(self):
        version = a_version(stage=Stage.PRODUCTION, verdict=Verdict("eval-2", "passed", (), number=2))
        for decide in (
            lambda: versions.on_eval_failed(version, [], failed(version, number=1)),
            lambda: versions.on_eval_inconclusive(version, inconclusive(version, number=1)),
        ):
            assert (decide().version, decide().events) == (version, ())


class TestPromote:
    def test_puts_a_staged_version_in_production(self):
        decision = promote(a_version(stage=Stage.STAGING))
        assert decision.version.stage is Stage.PRODUCTION
        assert decision.events[0].stage is Stage.PRODUCTION

    def test_says_again_that_it_is_in_production(self):
        assert isinstance(promote(a_version(stage=Stage.PRODUCTION)).events[0], ModelPromoted)

    def test_says_who_approved_it_and_why(self):
        decision = promote(a_version(stage=Stage.STAGING), reason="the release of May")
        (fact,) = decision.events
        assert (fact.approved_by, fact.approval_reason, fact.has_holdout) == (
            "ann",
            "the release of May",
            True,
        )
        assert not fact.accepted_without_holdout
        assert decision.version.approval == Approval("ann", "the release of May")

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, "no_holdout"),
            ({"reason": "we know it is good"}, "no_holdout"),
            ({"accept_without_holdout": True}, "no_reason"),
            ({"accept_without_holdout": True, "reason": " "}, "no_reason"),
        ],
    )
    @pytest.mark.parametrize(
        "checks", [(SAFE,), (SAFE, CheckResult(check="holdout", outcome="not_requested"))]
    )
    def test_without_a_holdout_asks_for_a_word_and_a_reason(self, checks, fields, code):
        version = a_version(stage=Stage.STAGING, verdict=Verdict("eval-1", "passed", checks))
        with pytest.raises(Refused) as refused:
            promote(version, **fields)
        assert refused.value.code == code

    def test_without_a_holdout_is_marked_for_ever(self):
        version = a_version(stage=Stage.STAGING, verdict=Verdict("eval-1", "passed", (SAFE,)))
        reason = "a house style, nothing to measure"
        decision = promote(version, accept_without_holdout=True, reason=reason)
        assert decision.version.approval == Approval("ann", reason, accepts_no_holdout=True)
        (fact,) = decision.events
        assert (fact.has_holdout, fact.accepted_without_holdout) == (False, True)
        assert decision.version.may_take_alias

    def test_is_void_after_a_failed_evaluation(self):
        approved = promote(a_version(stage=Stage.STAGING)).version
        assert versions.on_eval_failed(approved, [], failed(approved)).version.approval is None

    def test_names_the_check_that_failed_and_its_numbers(self):
        version = a_version(verdict=Verdict("eval-1", "failed", (UNSAFE,)))
        with pytest.raises(Refused) as refused:
            promote(version)
        assert refused.value.code == "not_gated"
        for words in ("safety", "0.12", "at least 0.95", "base 0.98", "n=200", "eval-1"):
            assert words in refused.value.message

    def test_names_the_bound_of_a_number_that_is_to_be_small(self):
        perplexity = Criterion(
            name="texts",
            metric="perplexity",
            value=3,
            baseline=None,
            threshold=2.5,
            count=20,
            passed=False,
            higher_is_better=False,
        )
        check = CheckResult(check="holdout", outcome="failed", criteria=(perplexity,))
        assert versions.gate_summary(Verdict("ev-1", "failed", (check,))) == (
            "failed in evaluation ev-1: check holdout failed (texts perplexity 3, expected at most 2.5, n=20)"
        )

    def test_says_that_an_unevaluated_version_was_not_evaluated(self):
        with pytest.raises(Refused, match="was not evaluated"):
            promote(a_version())

    def test_refuses_what_failed_its_newest_evaluation(self):
        with pytest.raises(Refused, match="newest evaluation"):
            promote(a_version(stage=Stage.STAGING, verdict=Verdict("eval-2", "failed", (UNSAFE,))))

    def test_refuses_what_was_trained_on_other_files(self):
        for sha, state in ((OTHER_SHA, "has sha cccccccccccc now"), (None, "is not registered")):
            with pytest.raises(Refused, match=f"base tiny with sha bbbbbbbbbbbb, which {state}") as refused:
                promote(a_version(stage=Stage.STAGING), current_sha=sha)
            assert refused.value.code == "stale"

    def test_says_why_a_check_without_numbers_is_inconclusive(self):
        check = CheckResult(check="judge", outcome="inconclusive", reason="no answer from the judge")
        with pytest.raises(Refused, match="no answer from the judge"):
            promote(a_version(verdict=Verdict("eval-1", "inconclusive", (check,))))


class TestArchive:
    def test_empties_every_slot_that_serves_it(self):
        version = a_version(stage=Stage.STAGING)
        serving = slots.approve(its_slot(version), version, job_id=None).slot
        decision = archive(version, serving)
        archived, withdrawn = decision.events
        assert isinstance(archived, ModelArchived)
        assert isinstance(withdrawn, DeploymentWithdrawn)
        assert withdrawn.generation == 2
        assert decision.slots[0].desired is None
        assert decision.version.archived_at == NOON

    def test_takes_a_version_that_never_left_dev(self):
        assert archive(a_version()).version.stage is Stage.DEV

    def test_refuses_what_is_archived_already(self):
        with pytest.raises(Refused, match="archived already"):
            archive(a_version(archived_at=NOON))


def test_a_version_changes_its_stage_so_and_no_other_way():
    """Nothing reaches production but from staging. A version is archived by a mark beside its stage."""
    stages = [Stage.DEV, Stage.STAGING, Stage.PRODUCTION]
    assert moves_of(stages, lambda stage: a_version(stage=stage), field="stage") == {
        "dev": {"staging"},
        "staging": {"production", "dev"},
        "production": {"dev"},
    }
    for stage in stages:
        with pytest.raises(IllegalTransition):
            a_version(stage=stage).to(Stage.ARCHIVED)


def test_an_artifact_without_a_version_is_refused_with_the_reason():
    artifact = an_artifact()
    assert versions.refuse_artifact(artifact, reason="a file is missing") == PromotionRefused(
        job_id=artifact.job_id,
        tenant=artifact.tenant,
        model_id=None,
        code="artifact",
        message="a file is missing",
    )
