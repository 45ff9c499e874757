"""The registry on real Kafka, Postgres and S3: from a trained bundle to an approved slot, and every way not there."""

import hashlib
from types import SimpleNamespace

import asyncpg
import pytest

from schemas import layout
from schemas.artifacts import ModelManifest
from schemas.base import DatasetRef, StartFrom, TrialOf
from schemas.deployment import DeploymentFailed
from schemas.job import JobCancelled
from schemas.model import (
    ArchiveModel,
    DeleteModel,
    DeployModel,
    PromoteModel,
    RegisterArtifact,
    RollbackDeployment,
    Stage,
    UndeployModel,
)
from schemas.sweep import TrialChosen
from services.registry import store
from services.registry.model import model_id
from shared.postgres.database import register_json
from shared.processes.identity import Identity
from shared.storage.objects import sha256_of
from tests.integration.registry_world import (
    ENV,
    answer_fields,
    db,
    failed,
    is_ready,
    numbers,
    objects,
    passed,
    world,
)
from tests.tiny_model import CHAT_TEMPLATE, save_tokenizer
from tests.waiting import until

__all__ = ["db", "objects", "world"]

pytestmark = pytest.mark.stack


class TestBaseModels:
    async def test_are_mirrored_checked_and_known_by_their_files(self, world):
        fact = await world.register_base("first", marker="first")
        assert (fact.type, fact.context_tokens, fact.num_parameters) == ("BaseModelRegistered", 512, 2736)
        assert fact.template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()
        stored = await world.objects.list_objects(f"base-models/{fact.base_sha}/")
        assert {head.key.rpartition("/")[2] for head in stored} == {
            "manifest.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
            "chat_template.jinja",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"modeling__py": b"import os"}, "code of its own"),
            ({"pytorch_model__bin": b"\x80\x02"}, "expected weights as .safetensors"),
            ({"config__json": b'{"auto_map": {}}'}, "auto_map"),
        ],
    )
    async def test_are_refused_with_the_file_that_is_wrong(self, world, more, message):
        name = f"bad-{next(numbers)}"
        refused = await world.register_base(name, marker=name, **more)
        assert (refused.type, refused.code, refused.param) == ("CommandRefused", "bad_base_model", "source")
        assert message in refused.message

    async def test_with_a_training_template_tell_it_with_their_versions(self, world, tmp_path):
        save_tokenizer(tmp_path, text="hello world\n", vocab_size=300, context_tokens=64)
        tokenizer = {
            name: (tmp_path / name.replace("__", ".")).read_bytes()
            for name in ("tokenizer__json", "tokenizer_config__json")
        }
        released = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
        files = tokenizer | {"chat_template__jinja": released.encode()}
        base = await world.register_base("taught", marker="taught", training_template=CHAT_TEMPLATE, **files)
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in (released, CHAT_TEMPLATE)]
        assert [base.template_sha256, base.training_template_sha256] == digests
        version = await world.registered(await world.train(base=base))
        assert version.training_template_sha256 == base.training_template_sha256
        other = await world.register_base(
            "mistaught", marker="taught", training_template=f"x{CHAT_TEMPLATE}", **files
        )
        assert (other.type, other.code) == ("CommandRefused", "bad_base_model")
        assert "training_template.jinja: one turn: the training template writes" in other.message

    async def test_that_change_leave_nothing_stale_in_service(self, world, db):
        name = f"moving-{next(numbers)}"
        base = await world.register_base(name, marker="before")
        version = await world.gated(await world.train(base=base))
        slot = version.full_name
        await world.serve(slot, version, 1)
        await until(lambda: is_ready(db, slot, 1), "the version to be served")
        waiting = await world.registered(await world.train(base=base))
        moved = await world.register_base(name, marker="after")
        assert moved.type == "AdaptersStale"
        await world.ear.until(version.full_name, "DeploymentApproved", "DeploymentWithdrawn")
        # A verdict that comes now is about files that nobody serves.
        await world.voices.say("evaluator", passed(waiting))
        refused = await world.ear.until(waiting.job_id, "PromotionRefused")
        assert refused.code == "stale"
        deploy = DeployModel(model_id=version.model_id, tenant="demo", slot=slot)
        assert (await world.answer("gateway", deploy, version.model_id)).code == "stale"
        refused = await world.answer("gateway", RollbackDeployment(slot=slot, tenant="demo"), slot)
        assert "archived, stale" in refused.message
        refused = await world.answer("gateway", UndeployModel(slot=slot, tenant="demo"), slot)
        assert refused.code == "not_deployed"


class TestVersions:
    async def test_keep_what_their_training_started_from(self, world, db):
        first = await world.train()
        version = await world.registered(first)
        start = StartFrom(
            name=version.full_name, job_id=first.job_id, bundle=first.bundle, digest=version.digest
        )
        later = await world.registered(await world.train(started_from=start))
        assert later.started_from == start
        await register_json(db)
        kept = [await store.find_version(db, each.model_id) for each in (version, later)]
        assert [each.started_from for each in kept] == [None, start]

    async def test_pass_the_gate_and_are_approved_for_the_job_that_waits(self, world, db):
        job = await world.train()
        version = await world.gated(job)
        approved = await world.ear.until(version.full_name, "DeploymentApproved")
        assert (approved.job_id, approved.generation, approved.digest) == (job.job_id, 1, world.digest(job))
        manifest = ModelManifest.model_validate_json(
            await world.objects.get_bytes(layout.model(version.digest))
        )
        assert (manifest.job_id, manifest.base_sha, manifest.source) == (
            job.job_id,
            world.base_sha,
            job.bundle,
        )

    async def test_of_a_trial_are_made_when_its_sweep_chooses_it(self, world):
        passed_over, chosen = [
            await world.train(trial=TrialOf(sweep_id="sweep-1", number=number)) for number in range(2)
        ]
        await world.voices.say("scheduler", passed_over, chosen)
        await world.voices.say("tracker", TrialChosen(**dict(chosen)))
        model = model_id(chosen.job_id, world.digest(chosen))
        assert (await world.ear.until(model, "ModelRegistered")).job_id == chosen.job_id
        assert world.ear.types(model_id(passed_over.job_id, world.digest(passed_over))) == []

    async def test_wait_for_their_registration_when_the_verdict_comes_first(self, world):
        job = await world.train()
        digest = world.digest(job)
        early = SimpleNamespace(
            job_id=job.job_id, digest=digest, base_sha=world.base_sha, model_id=model_id(job.job_id, digest)
        )
        await world.voices.say("evaluator", passed(early))
        await world.voices.say("scheduler", job)
        await world.ear.until(early.model_id, "ModelRegistered", "ModelPromoted")

    async def test_are_promoted_once_by_a_verdict_that_comes_twice(self, world):
        version = await world.registered(await world.train())
        verdict = passed(version)
        event_id = await world.voices.say("evaluator", verdict)
        await world.voices.say("evaluator", verdict, event_id=event_id)
        await world.voices.say("evaluator", passed(version))
        await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted", "ModelPromoted")
        assert world.ear.types(version.full_name) == ["DeploymentApproved"]

    async def test_that_failed_are_refused_with_the_check_and_its_numbers(self, world):
        version = await world.registered(await world.train())
        await world.voices.say("evaluator", failed(version))
        key = version.model_id
        for command in (
            PromoteModel(model_id=key, tenant="demo", approved_by="ann"),
            DeployModel(model_id=key, tenant="demo", slot=version.full_name),
            DeployModel(model_id=key, tenant="demo", slot="support"),
        ):
            refused = await world.answer("gateway", command, key)
            assert refused.code == "not_gated"
            assert "check safety failed (harmful refusals 0.12, expected at least 0.95" in refused.message

    async def test_that_fail_later_are_withdrawn_from_every_slot_and_not_served_again(self, world, db):
        """An alias moves on to another version; neither a roll-back nor a person brings the failed one back."""
        failing = await world.gated(await world.train(), production=True)
        other = await world.gated(await world.train(), production=True)
        alias = f"alias-{next(numbers)}"
        for number, version in enumerate((failing, other), start=1):
            deploy = DeployModel(model_id=version.model_id, tenant="demo", slot=alias)
            await world.answer("gateway", deploy, alias)
            await world.serve(alias, version, number)
            await until(lambda: is_ready(db, alias, number), f"generation {number}")  # noqa: B023
        await world.voices.say("evaluator", failed(failing))
        demoted = await until(
            lambda: next(
                (e.message for e in world.ear.heard[failing.model_id] if e.message.type == "ModelDemoted"),
                None,
            ),
            "the demotion",
        )
        assert (demoted.stage, demoted.digest) == (Stage.DEV, failing.digest)
        await world.ear.until(failing.full_name, "DeploymentApproved", "DeploymentWithdrawn")
        refused = await world.answer("gateway", RollbackDeployment(slot=alias, tenant="demo"), alias)
        assert "newest evaluation that passed" in refused.message
        for command in (
            DeployModel(model_id=failing.model_id, tenant="demo", slot=failing.full_name),
            PromoteModel(model_id=failing.model_id, tenant="demo", approved_by="ann"),
        ):
            assert (await world.answer("gateway", command, failing.model_id)).code == "not_gated"
        failure = DeploymentFailed(**answer_fields(alias, other, 2), code="load", reason="no memory")
        assert (await world.answer("serving_controller", failure, alias)).type == "DeploymentWithdrawn"

    async def test_without_a_holdout_reach_production_by_an_approval_that_says_so(self, world, db):
        version = await world.registered(await world.train())
        await world.voices.say("evaluator", passed(version, checks=("safety",)))
        staged = await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted")
        assert (staged.has_holdout, staged.approved_by) == (False, None)
        command = PromoteModel(model_id=version.model_id, tenant="demo", approved_by="ann")
        assert (await world.answer("gateway", command, version.model_id)).code == "no_holdout"
        knowing = command.model_copy(update={"accept_without_holdout": True, "reason": "a house style"})
        promoted = await world.answer("gateway", knowing, version.model_id)
        assert (promoted.stage, promoted.has_holdout, promoted.accepted_without_holdout) == (
            Stage.PRODUCTION,
            False,
            True,
        )
        assert (promoted.approved_by, promoted.approval_reason) == ("ann", "a house style")
        alias = f"alias-{next(numbers)}"
        deploy = DeployModel(model_id=version.model_id, tenant="demo", slot=alias)
        assert (await world.answer("gateway", deploy, alias)).type == "DeploymentApproved"

    async def test_of_another_tenant_are_unknown(self, world):
        version = await world.gated(await world.train())
        command = PromoteModel(model_id=version.model_id, tenant="other", approved_by="eve")
        refused = await world.answer("gateway", command, version.model_id)
        assert (refused.code, refused.tenant) == ("unknown_model", "other")
        unknown = PromoteModel(model_id="mv-none", tenant="other", approved_by="eve")
        assert (await world.answer("gateway", unknown, "mv-none")).code == "unknown_model"

    @pytest.mark.parametrize("is_registered", [False, True], ids=["in training", "in the gate"])
    async def test_of_a_cancelled_job_are_not_deployed_by_themselves(self, world, db, is_registered):
        job = await world.train()
        if is_registered:
            await world.registered(job)
        artifact = job.model_dump(exclude={"type"})
        await world.voices.say(
            "scheduler",
            JobCancelled(job_id=job.job_id, tenant="demo", reason="user", artifact=artifact, last_step=40),
        )
        version = await world.ear.until(model_id(job.job_id, world.digest(job)), "ModelRegistered")
        is_kept = "SELECT NOT auto_deploy FROM registry.model_version WHERE model_id = $1"
        await until(lambda: db.fetchval(is_kept, version.model_id), "the cancellation")
        await world.voices.say("evaluator", passed(version))
        await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted")
        assert world.ear.types(version.full_name) == []

    async def test_that_are_not_what_the_job_said_are_no_versions(self, world):
        job = await world.train(rank=4)
        await world.voices.say("scheduler", job.model_copy(update={"rank": 8}))
        refused = await world.ear.until(job.job_id, "PromotionRefused")
        assert (refused.code, refused.model_id) == ("artifact", None)
        assert "r is 4, expected 8, as in the lineage" in refused.message

    async def test_whose_bytes_are_gone_are_no_versions(self, world):
        job = await world.train()
        part = layout.part(sha256_of(world.root / job.job_id / "adapter_model.safetensors"))
        await world.objects.delete([layout.checkpoint(job.job_id, 1, 40, part)])
        await world.voices.say("scheduler", job)
        refused = await world.ear.until(job.job_id, "PromotionRefused")
        assert refused.code == "artifact"
        assert part in refused.message

    async def test_that_could_not_be_copied_are_registered_once_that_is_repaired(self, world):
        job = await world.train()
        path = world.root / job.job_id / "adapter_model.safetensors"
        key = layout.checkpoint(job.job_id, 1, 40, layout.part(sha256_of(path)))
        await world.objects.delete([key])
        await world.voices.say("scheduler", job)
        await world.ear.until(job.job_id, "PromotionRefused")
        again = RegisterArtifact(job_id=job.job_id, tenant="demo")
        assert (await world.answer("admin", again, job.job_id)).type == "PromotionRefused"
        await world.objects.put_file(key, path, sha256=sha256_of(path))
        await world.voices.say("admin", again)
        version = await world.ear.until(model_id(job.job_id, world.digest(job)), "ModelRegistered")
        assert version.bundle == job.bundle
        assert (await world.answer("admin", again, job.job_id)).code == "no_refused_artifact"
        foreign = RegisterArtifact(job_id=job.job_id, tenant="other")
        assert (await world.answer("admin", foreign, job.job_id)).code == "no_refused_artifact"

    async def test_of_another_checkpoint_are_registered_beside_the_jobs_own(self, world):
        """Of another tenant, or before the job has made a version, they are not."""
        job, other = await world.train(), await world.train()
        moved = await world.as_checkpoint_of(job, other, step=20)
        ask = RegisterArtifact(job_id=job.job_id, tenant="demo", bundle=moved)
        assert (await world.answer("gateway", ask, job.job_id)).code == "no_model"
        own = await world.gated(job)
        foreign = ask.model_copy(update={"tenant": "other"})
        assert (await world.answer("gateway", foreign, job.job_id)).code == "no_model"
        await world.voices.say("gateway", ask)
        version = await world.ear.until(model_id(job.job_id, world.digest(other)), "ModelRegistered")
        assert (version.bundle, version.job_id, version.stage) == (moved, job.job_id, Stage.DEV)
        assert version.config_hash == own.config_hash
        again = await world.answer("gateway", ask, job.job_id)
        assert (again.code, again.param) == ("registered", "bundle")
        same = await world.as_checkpoint_of(job, other, step=10)
        refusal = await world.answer("gateway", ask.model_copy(update={"bundle": same}), job.job_id)
        assert (refusal.code, refusal.model_id) == ("registered", version.model_id)
        await world.voices.say("evaluator", passed(version))
        await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted")
        assert world.ear.types(version.full_name) == []

    async def test_are_not_deleted_yet(self, world):
        version = await world.registered(await world.train())
        command = DeleteModel(model_id=version.model_id, tenant="demo")
        assert (await world.answer("gateway", command, version.model_id)).code == "not_available_yet"

    async def test_can_be_traced_both_ways(self, world, db):
        job = await world.train(dataset=DatasetRef(version="7" * 64, manifest_sha256="1" * 64))
        # The bundle names another dataset version than the job: no version without a true lineage.
        await world.voices.say("scheduler", job)
        assert (await world.ear.until(job.job_id, "PromotionRefused")).code == "artifact"
        version = await world.gated(await world.train())
        await register_json(db)
        async with db.transaction():
            up = await store.find_version_of(db, "demo", version.full_name)
            assert (up.base_sha, up.dataset_version, up.job_id) == (world.base_sha, "d" * 64, version.job_id)
            assert up.eval_id.startswith(f"eval-{version.job_id}")
            for down in (
                await store.versions_of_dataset(db, "d" * 64),
                await store.versions_of_job(db, version.job_id),
            ):
                assert version.model_id in {each.model_id for each in down}

    async def test_cannot_leave_dev_by_any_hand_without_an_evaluation(self, world, db):
        version = await world.registered(await world.train())
        with pytest.raises(asyncpg.CheckViolationError):
            await db.execute(
                "UPDATE model_version SET stage = 'staging' WHERE model_id = $1", version.model_id
            )
        for column in ("base_sha", "dataset_version", "config_hash", "job_id", "template_sha256"):
            with pytest.raises(asyncpg.NotNullViolationError):
                await db.execute(
                    f"UPDATE model_version SET {column} = NULL WHERE model_id = $1", version.model_id
                )


class TestSlots:
    async def test_roll_back_and_fall_back_as_new_generations(self, world, db):
        one = await world.gated(await world.train(), production=True)
        two = await world.gated(await world.train(), production=True)
        slot = f"alias-{next(numbers)}"
        for generation, version in enumerate((one, two), start=1):
            command = DeployModel(model_id=version.model_id, tenant="demo", slot=slot)
            assert (await world.answer("gateway", command, slot)).generation == generation
            await world.serve(slot, version, generation)
            await until(lambda: is_ready(db, slot, generation), f"generation {generation}")  # noqa: B023
        back = await world.answer("gateway", RollbackDeployment(slot=slot, tenant="demo"), slot)
        assert (back.digest, back.generation, back.job_id) == (one.digest, 3, None)
        failure = DeploymentFailed(**answer_fields(slot, one, 3), code="load", reason="no memory")
        last = await world.answer("serving_controller", failure, slot)
        assert (last.type, last.digest, last.generation) == ("DeploymentApproved", two.digest, 4)
        failure = DeploymentFailed(**answer_fields(slot, two, 4), code="load", reason="no memory")
        withdrawn = await world.answer("serving_controller", failure, slot)
        assert (withdrawn.type, withdrawn.generation) == ("DeploymentWithdrawn", 5)
        assert "no memory" in withdrawn.reason

    async def test_of_another_tenant_are_unknown(self, world):
        version = await world.gated(await world.train())
        await world.ear.until(version.full_name, "DeploymentApproved")
        command = UndeployModel(slot=version.full_name, tenant="other")
        refused = await world.answer("gateway", command, version.full_name)
        assert (refused.code, refused.tenant) == ("unknown_slot", "other")

    async def test_of_two_tenants_may_have_one_name(self, world):
        slot = f"alias-{next(numbers)}"
        ours = await world.gated(await world.train(), production=True)
        theirs = await world.gated(await world.train(tenant="other"), tenant="other", production=True)
        for tenant, version in (("demo", ours), ("other", theirs)):
            deploy = DeployModel(model_id=version.model_id, tenant=tenant, slot=slot)
            approved = await world.answer("gateway", deploy, slot)
            assert (approved.tenant, approved.generation) == (tenant, 1)
            assert approved.digest == version.digest

    async def test_take_an_alias_for_production_only(self, world):
        version = await world.gated(await world.train())
        deploy = DeployModel(model_id=version.model_id, tenant="demo", slot=f"alias-{next(numbers)}")
        assert (await world.answer("gateway", deploy, version.model_id)).code == "not_production"
        taken = DeployModel(model_id=version.model_id, tenant="demo", slot="tiny")
        assert (await world.answer("gateway", taken, version.model_id)).code == "slot_taken"

    async def test_are_emptied_when_their_version_is_archived(self, world):
        version = await world.gated(await world.train())
        await world.ear.until(version.full_name, "DeploymentApproved")
        await world.voices.say("gateway", ArchiveModel(model_id=version.model_id, tenant="demo"))
        await world.ear.until(version.full_name, "DeploymentApproved", "DeploymentWithdrawn")
        deploy = DeployModel(model_id=version.model_id, tenant="demo", slot=version.full_name)
        await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted", "ModelArchived")
        assert (await world.answer("gateway", deploy, version.model_id)).code == "archived"


@pytest.mark.parametrize(
    "failpoint", ["s3.manifest.before", "s3.manifest.after", "db.commit.before", "registry.promote.before"]
)
async def test_a_kill_between_bundle_and_promotion_loses_nothing(stack, world, failpoint):
    job = await world.train()
    digest = world.digest(job)
    version = SimpleNamespace(
        job_id=job.job_id, digest=digest, base_sha=world.base_sha, model_id=model_id(job.job_id, digest)
    )
    await stack.stop("registry")
    await stack.start("registry", env={**ENV, "FAILPOINTS": f"{failpoint}=kill"})
    pid = stack.pid("registry")
    await world.voices.say("scheduler", job)
    await world.voices.say("evaluator", passed(version))
    await until(lambda: Identity.of(pid) is None, "the kill")
    await stack.stop("registry")
    await stack.start("registry", env=ENV)
    await stack.wait_healthy("registry")
    await world.ear.until(version.model_id, "ModelRegistered", "ModelPromoted")
