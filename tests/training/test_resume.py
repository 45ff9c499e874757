"""Whatever interrupts a run, the attempt after it ends with the same bytes, or says that it may not."""

import json
import random
import signal
import subprocess
from threading import Event

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.base import FailureClass
from schemas.specification import CheckpointSpec
from services.trainer_agent.protocol import (
    STOP,
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Progressed,
    Report,
    ResumeChecked,
    Saved,
    Started,
    Stepped,
    bundle_dir,
)
from services.trainer_agent.training import loop, saver
from services.trainer_agent.training.child import run_child
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import compare, prepare
from services.trainer_agent.training.stop import StopRequest
from tests.chaos.scale import note, seed
from tests.training.jobs import (
    BASE_SHA,
    ONE_PROCESS,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    log_in,
    model_sha256,
    reports_in,
    reports_of,
    rewrite_manifest,
    start_child,
    wait_for_exit,
    wait_for_step,
    wait_until,
)
from tests.training.ranks import fork_child

pytestmark = pytest.mark.any_device

LONG = a_recipe(num_epochs=8)
NUM_STEPS = 56
LONG_STEPS = a_recipe(num_epochs=4, batch_size=28)
"""4 steps of 14 micro batches each; one periodic bundle, at step 3."""
SAVED_OFTEN = LONG_STEPS.model_copy(update={"checkpoint": CheckpointSpec(every_steps=1, every_seconds=3600)})


@pytest.fixture(scope="module")
def uninterrupted(inputs, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("uninterrupted") / "work", an_order(inputs, LONG))


@pytest.fixture(scope="module")
def at_step_3(inputs, uninterrupted, tmp_path_factory):
    """A bundle of the uninterrupted run, as a runner fetches it. Tests that change it copy it first."""
    saved = next(s for s in reports_of(uninterrupted, Saved) if s.step == 3)
    return as_bundle(an_order(inputs, LONG), saved, tmp_path_factory.mktemp("bundle") / "at-3")


@pytest.fixture(scope="module")
def long_steps(inputs, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("long-steps") / "work", an_order(inputs, LONG_STEPS))


def final_sha256(reports: tuple[Report, ...], *, num_steps: int = NUM_STEPS) -> str:
    last = reports_of(reports, Saved)[-1]
    assert (last.step, last.bundle) == (num_steps, BundleKind.FINAL)
    return model_sha256(last)


def resumed(inputs, bundle, directory, **changes):
    return carry_out(directory, an_order(inputs, LONG, attempt=2, resume_dir=bundle, **changes))


class TestExactness:
    def test_a_resumed_run_ends_with_the_same_bytes_and_says_so(
        self, inputs, uninterrupted, at_step_3, tmp_path
    ):
        reports = resumed(inputs, at_step_3, tmp_path / "work")
        [started], [checked] = reports_of(reports, Started), reports_of(reports, ResumeChecked)
        assert (started.start_step, checked.certificate.exact) == (3, True), checked.certificate.reason
        assert checked.certificate.is_repeatable
        tail = [s.loss for s in reports_of(uninterrupted, Stepped)][3:]
        assert [s.loss for s in reports_of(reports, Stepped)] == tail
        assert final_sha256(reports) == final_sha256(uninterrupted)
        ends = [reports_of(r, Saved)[-1].directory / "state.json" for r in (reports, uninterrupted)]
        assert ends[0].read_text() == ends[1].read_text()

    def test_the_expected_loss_is_the_very_loss_of_the_next_step(self, inputs, tmp_path):
        """One micro batch per step, so that both are the same sum; dropout shows that no number was drawn."""
        recipe = a_recipe(num_epochs=1, micro_batch_size=4)
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        losses = {s.step: s.loss for s in reports_of(reports, Stepped)}
        expected = {
            saved.step + 1: json.loads((saved.directory / "state.json").read_text())["expected_loss"]
            for saved in reports_of(reports, Saved)
            if saved.bundle is not BundleKind.FINAL
        }
        assert expected == {step: losses[step] for step in (4, 7)}

    def test_saving_changes_nothing(self, inputs, uninterrupted, tmp_path):
        rare = LONG.model_copy(update={"checkpoint": CheckpointSpec(every_steps=10_000, every_seconds=3600)})
        reports = carry_out(tmp_path / "work", an_order(inputs, rare))
        assert [s.step for s in reports_of(reports, Saved)] == [NUM_STEPS]
        assert final_sha256(reports) == final_sha256(uninterrupted)

    def test_activations_computed_again_from_the_bundle_on_change_no_bit(
        self, inputs, uninterrupted, at_step_3, tmp_path
    ):
        """As after an attempt that ran out of memory. Dropout shows that the same numbers are drawn again."""
        assert LONG.lora.dropout > 0
        recomputing = LONG.model_copy(update={"gradient_checkpointing": True})
        reports = carry_out(tmp_path / "work", an_order(inputs, recomputing, resume_dir=at_step_3))
        [prepared], [checked] = reports_of(reports, PreflightDone), reports_of(reports, ResumeChecked)
        assert prepared.preparation.gradient_checkpointing
        assert checked.certificate.exact, checked.certificate.reason
        tail = [s.loss for s in reports_of(uninterrupted, Stepped)][3:]
        assert [s.loss for s in reports_of(reports, Stepped)] == tail
        assert final_sha256(reports) == final_sha256(uninterrupted)


class TestCertificate:
    @pytest.fixture
    def bundle(self, at_step_3, tmp_path):
        target = tmp_path / "bundle"
        subprocess.run(["cp", "-r", at_step_3, target], check=True)
        return target

    def certificate(self, inputs, bundle, tmp_path):
        rewrite_manifest(bundle)
        order = an_order(inputs, LONG, resume_dir=bundle)
        work_dir = a_work_dir(tmp_path / "work", order)
        reports = Reports(work_dir, inputs.world)
        compare(*prepare(order, work_dir, inputs.world, reports), StopRequest(work_dir))
        [checked] = reports_of(reports_in(work_dir), ResumeChecked)
        return checked.certificate

    def test_notices_other_weights(self, inputs, bundle, tmp_path):
        self.nudge(bundle / "model/adapter_model.safetensors", by=1e-3)
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert certificate.reason.startswith("state of rank 0: expected ")
        assert certificate.expected_loss != certificate.found_loss

    def test_notices_other_moments(self, inputs, bundle, tmp_path):
        self.nudge(bundle / "optimizer/rank-0.safetensors", by=1e-6)
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert certificate.reason.startswith("state of rank 0: expected ")
        assert certificate.expected_loss == certificate.found_loss

    def test_notices_other_random_numbers(self, inputs, bundle, tmp_path):
        torch.manual_seed(999)
        save_file({"cpu": torch.get_rng_state()}, bundle / "rng/rank-0.safetensors")
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert certificate.expected_loss != certificate.found_loss

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"step": 4}, "batches consumed: expected "),
            ({"expected_loss": 1.5}, "next loss: expected 1.5, found "),
            ({"expected_batch_sha256": "0" * 64}, "next batch: expected 0000"),
            ({"packed": False}, "packing: expected False, found True"),
            ({"consumed_sha256": "f" * 64}, "batches consumed: expected "),
        ],
    )
    def test_notices_another_position(self, inputs, bundle, tmp_path, changes, reason):
        state = json.loads((bundle / "state.json").read_text())
        (bundle / "state.json").write_text(json.dumps(state | changes))
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert (certificate.state_exact, certificate.environment_equal) == (False, True)
        assert certificate.reason.startswith(reason)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"torch": "1.0.0"}, "torch: expected 1.0.0, found "),
            ({"threads": "10000"}, "threads: expected 10000, found "),
            ({"training code": "0" * 64}, "training code: expected 0000"),
            ({"driver": "560.35"}, "driver: expected 560.35, found "),
        ],
    )
    def test_tells_another_environment_from_another_state(self, inputs, bundle, tmp_path, changes, reason):
        state = json.loads((bundle / "state.json").read_text())
        state["environment"] |= changes
        state["expected_loss"] += 1e-7  # which another environment may well do
        (bundle / "state.json").write_text(json.dumps(state))
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert (certificate.state_exact, certificate.environment_equal) == (True, False)
        assert certificate.reason.startswith(reason)

    def test_of_a_bundle_that_names_no_environment_vouches_for_the_state_alone(
        self, inputs, bundle, tmp_path
    ):
        state = json.loads((bundle / "state.json").read_text())
        (bundle / "state.json").write_text(json.dumps(state | {"environment": {}}))
        certificate = self.certificate(inputs, bundle, tmp_path)
        assert not certificate.exact
        assert (certificate.state_exact, certificate.environment_equal) == (True, False)

    def nudge(self, path, *, by):
        tensors = load_file(path)
        name = max(tensors)
        tensors[name] = tensors[name] + by
        save_file(tensors, path, metadata={"format": "pt"})


class TestRefusals:
    def test_a_part_that_is_not_what_the_manifest_names_is_infra(self, inputs, at_step_3, tmp_path):
        bundle = tmp_path / "bundle"
        subprocess.run(["cp", "-r", at_step_3, bundle], check=True)
        path = bundle / "optimizer/rank-0.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        [ended] = reports_of(resumed(inputs, bundle, tmp_path / "work"), Ended)
        assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.INFRA)
        assert "optimizer/rank-0.safetensors" in ended.message

    def test_a_bundle_of_another_recipe_is_refused(self, inputs, at_step_3, tmp_path):
        other = LONG.model_copy(update={"batch_size": 2})
        order = an_order(inputs, other, resume_dir=at_step_3)
        [ended] = reports_of(carry_out(tmp_path / "work", order), Ended)
        assert ended.failure_class is FailureClass.INTERNAL
        assert "recipe" in ended.message


class TestKill:
    def test_kill_9_at_a_random_step_loses_nothing_but_time(
        self, inputs, uninterrupted, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("FAILPOINTS", "trainer.step.end=stall:0.02")
        step = random.Random(seed()).randint(3, NUM_STEPS - 20)
        child = start_child(tmp_path / "killed", an_order(inputs, LONG))
        wait_for_step(child, tmp_path / "killed", step, of=Saved)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        reports = reports_in(tmp_path / "killed")
        assert not reports_of(reports, Ended)
        saved = reports_of(reports, Saved)[-1]
        bundle = as_bundle(an_order(inputs, LONG), saved, tmp_path / "bundle")
        self.ends_alike(uninterrupted, resumed(inputs, bundle, tmp_path / "resumed"))

    def test_five_attempts_of_which_four_are_killed_end_as_one(
        self, inputs, uninterrupted, tmp_path, monkeypatch
    ):
        """After a step, before and after a bundle is written, and while the run is asked to stop."""
        failpoints = ("trainer.step.end=kill@11", "trainer.save.begin=kill@4", "trainer.save.end=kill@4")
        bundle, step = None, 0
        for attempt, failpoint in enumerate([*failpoints, "trainer.sigterm=kill"], start=1):
            monkeypatch.setenv("FAILPOINTS", failpoint)
            work_dir = tmp_path / f"attempt-{attempt}"
            order = an_order(inputs, LONG, attempt=attempt, resume_dir=bundle)
            child = fork_child(work_dir, order)
            if failpoint.startswith("trainer.sigterm"):
                wait_for_step(child, work_dir, step + 7)
                child.terminate()
            assert wait_for_exit(child, work_dir) == -signal.SIGKILL, f"{failpoint} was never passed"
            note("training killed", kills=1)
            reports = reports_in(work_dir)
            assert not reports_of(reports, Ended)
            if saved := reports_of(reports, Saved):
                bundle, step = as_bundle(order, saved[-1], tmp_path / f"bundle-{attempt}"), saved[-1].step
        self.ends_alike(uninterrupted, resumed(inputs, bundle, tmp_path / "resumed"))

    def ends_alike(self, uninterrupted, after) -> None:
        [checked] = reports_of(after, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert final_sha256(after) == final_sha256(uninterrupted)


class TestStop:
    @pytest.mark.parametrize("way", ["sigterm", "file"])
    def test_a_stop_keeps_every_step_and_leaves_the_same_bytes(self, inputs, uninterrupted, tmp_path, way):
        work_dir = tmp_path / "stopped"
        child = fork_child(work_dir, an_order(inputs, LONG))
        wait_for_step(child, work_dir, 4)
        if way == "sigterm":
            child.terminate()
        else:
            (work_dir / STOP).write_text("preempt")
        assert wait_for_exit(child, work_dir) == 143, log_in(work_dir)
        reports = reports_in(work_dir)
        [ended], saved = reports_of(reports, Ended), reports_of(reports, Saved)[-1]
        assert (ended.outcome, ended.message) == (
            Outcome.STOPPED,
            "preempt" if way == "file" else "SIGTERM",
        )
        assert saved.bundle is BundleKind.EMERGENCY
        assert saved.step == reports_of(reports, Stepped)[-1].step == ended.last_step < NUM_STEPS
        bundle = as_bundle(an_order(inputs, LONG), saved, tmp_path / "bundle")
        after = resumed(inputs, bundle, tmp_path / "resumed")
        [checked] = reports_of(after, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert final_sha256(after) == final_sha256(uninterrupted)

    def test_a_stop_before_the_first_step_saves_nothing(self, inputs, tmp_path):
        reports = self.stopped_at_once(tmp_path / "work", an_order(inputs, LONG))
        [ended] = reports_of(reports, Ended)
        assert (ended.outcome, ended.last_step) == (Outcome.STOPPED, 0)
        assert not reports_of(reports, Saved)

    def test_a_stop_right_after_a_resume_names_the_bundle_it_came_from(self, inputs, at_step_3, tmp_path):
        order = an_order(inputs, LONG, resume_dir=at_step_3)
        reports = self.stopped_at_once(tmp_path / "work", order)
        [saved], [ended] = reports_of(reports, Saved), reports_of(reports, Ended)
        assert (saved.reused, saved.step, saved.directory) == (True, 3, at_step_3)
        assert saved.all_parts
        assert not saved.parts
        assert ended.last_step == 3

    def test_a_resume_from_the_last_step_completes_with_that_bundle(self, inputs, uninterrupted, tmp_path):
        saved = reports_of(uninterrupted, Saved)[-1]
        bundle = as_bundle(an_order(inputs, LONG), saved, tmp_path / "bundle")
        reports = resumed(inputs, bundle, tmp_path / "work")
        [again], [ended] = reports_of(reports, Saved), reports_of(reports, Ended)
        assert (again.reused, again.bundle, again.step) == (True, BundleKind.FINAL, NUM_STEPS)
        assert ended.outcome is Outcome.COMPLETED
        [checked] = reports_of(reports, ResumeChecked)
        assert checked.certificate.exact

    def stopped_at_once(self, work_dir, order):
        a_work_dir(work_dir, order)
        (work_dir / STOP).write_text("cancel")
        run_child(work_dir, ONE_PROCESS, StopRequest(work_dir))
        return reports_in(work_dir)


class StopAtQuestion(StopRequest):
    """There from the n-th time on that it is asked for."""

    def __init__(self, work_dir, *, number):
        super().__init__(work_dir)
        self._questions_before = number

    @property
    def is_there(self):
        self._questions_before -= 1
        return self._questions_before <= 0


class StopAfterLastStep(StopRequest):
    @property
    def is_there(self):
        return any(s.step == NUM_STEPS for s in reports_of(reports_in(self._file.parent), Stepped))


class TestStopBetweenMicroBatches:
    """A step asks twice, at its boundary and between its two micro batches; a validation once."""

    @pytest.mark.parametrize(
        ("question", "step", "measured"),
        [
            (8, 3, {"train_loss"}),
            (9, 3, {"train_loss", "valid_loss", "perplexity"}),
            (10, 4, {"train_loss"}),
            (11, 4, {"train_loss"}),
        ],
        ids=["in a validation", "in the step after it", "at a boundary", "in a step"],
    )
    def test_drops_the_half_step_and_nothing_else(
        self, inputs, uninterrupted, tmp_path, question, step, measured
    ):
        order = an_order(inputs, LONG)
        work_dir = a_work_dir(tmp_path / "stopped", order)
        outcome = run_child(work_dir, ONE_PROCESS, StopAtQuestion(work_dir, number=question))
        reports = reports_in(work_dir)
        assert (outcome, reports_of(reports, Stepped)[-1].step) == (Outcome.STOPPED, step)
        [saved] = [s for s in reports_of(reports, Saved) if s.step == step]
        assert (saved.bundle, saved.metrics.by_name.keys()) == (BundleKind.EMERGENCY, measured)
        after = resumed(inputs, as_bundle(order, saved, tmp_path / "bundle"), tmp_path / "resumed")
        [checked] = reports_of(after, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert final_sha256(after) == final_sha256(uninterrupted)

    def test_in_the_last_validation_completes_without_its_number(self, inputs, uninterrupted, tmp_path):
        work_dir = a_work_dir(tmp_path / "work", an_order(inputs, LONG))
        assert run_child(work_dir, ONE_PROCESS, StopAfterLastStep(work_dir)) is Outcome.COMPLETED
        reports = reports_in(work_dir)
        assert reports_of(reports, Saved)[-1].metrics.by_name.keys() == {"train_loss"}
        assert final_sha256(reports) == final_sha256(uninterrupted)

    def test_by_a_signal_is_heard_within_a_long_step(self, inputs, long_steps, tmp_path, monkeypatch):
        """From the second step on each micro batch takes 0.3 s, so that 14 of them are a long step."""
        monkeypatch.setenv("FAILPOINTS", "trainer.microbatch.end=stall:0.3@16")
        order, work_dir = an_order(inputs, SAVED_OFTEN), tmp_path / "stopped"
        child = fork_child(work_dir, order)

        def is_within_second_step() -> bool:
            """A slow machine reports progress within the first one, too."""
            kinds = [type(report) for report in reports_in(work_dir)]
            return Stepped in kinds and Progressed in kinds[kinds.index(Stepped) :]

        wait_until(child, work_dir, is_within_second_step, "no progress within the second step")
        child.terminate()
        assert wait_for_exit(child, work_dir) == 143, log_in(work_dir)
        reports = reports_in(work_dir)
        [saved], [stepped] = reports_of(reports, Saved), reports_of(reports, Stepped)
        assert (saved.step, stepped.step, saved.bundle) == (1, 1, BundleKind.EMERGENCY)
        self.ends_like(long_steps, order, saved, tmp_path)

    def test_by_a_signal_is_heard_within_the_last_validation(self, inputs, long_steps, tmp_path, monkeypatch):
        monkeypatch.setenv("FAILPOINTS", "trainer.validation.microbatch=stall:5@3")
        work_dir = tmp_path / "stopped"
        child = fork_child(work_dir, an_order(inputs, LONG_STEPS))
        state = bundle_dir(work_dir, 4) / "state.json"
        wait_until(child, work_dir, state.exists, "the last bundle is not written while validation continues")
        child.terminate()
        assert wait_for_exit(child, work_dir) == 0, log_in(work_dir)
        reports = reports_in(work_dir)
        assert reports_of(reports, Saved)[-1].metrics.by_name.keys() == {"train_loss"}
        assert final_sha256(reports, num_steps=4) == final_sha256(long_steps, num_steps=4)

    @pytest.mark.parametrize(
        ("recipe", "failpoint"),
        [
            (SAVED_OFTEN, "trainer.microbatch.end=kill@50"),
            (LONG_STEPS, "trainer.validation.microbatch=kill@3"),
        ],
        ids=["in a long step", "in the last validation"],
    )
    def test_a_kill_in_the_same_places_ends_in_the_same_bytes(
        self, inputs, long_steps, tmp_path, monkeypatch, recipe, failpoint
    ):
        monkeypatch.setenv("FAILPOINTS", failpoint)
        order, work_dir = an_order(inputs, recipe), tmp_path / "killed"
        child = fork_child(work_dir, order)
        assert wait_for_exit(child, work_dir) == -signal.SIGKILL, f"{failpoint} was never passed"
        self.ends_like(long_steps, order, reports_of(reports_in(work_dir), Saved)[-1], tmp_path)

    def ends_like(self, whole, order, saved, directory):
        bundle = as_bundle(order, saved, directory / "bundle")
        again = order.model_copy(update={"attempt": 2, "resume_dir": bundle})
        after = carry_out(directory / "resumed", again)
        [checked] = reports_of(after, ResumeChecked)
        assert checked.certificate.exact, checked.certificate.reason
        assert final_sha256(after, num_steps=4) == final_sha256(whole, num_steps=4)


class TestInterval:
    def test_a_bundle_is_due_by_the_clock_as_well(self, inputs, tmp_path):
        recipe = a_recipe(num_epochs=1, checkpoint=CheckpointSpec(every_steps=1000, every_seconds=0.001))
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        periodic = [s.step for s in reports_of(reports, Saved) if s.bundle is BundleKind.PERIODIC]
        assert periodic[0] == 1 < len(periodic)

    def test_one_bundle_at_a_time_and_training_continues_meanwhile(self, inputs, tmp_path, monkeypatch):
        """The first bundle's writing takes until step 5."""
        write, reached = saver._write, Event()

        def slow_write(*arguments):
            assert reached.wait(60)
            return write(*arguments)

        def watched_step(run, stop):
            stepped = take_step(run, stop)
            if stepped.step == 5:
                reached.set()
            return stepped

        take_step = loop.take_step
        monkeypatch.setattr(saver, "_write", slow_write)
        monkeypatch.setattr(loop, "take_step", watched_step)
        recipe = a_recipe(checkpoint=CheckpointSpec(every_steps=1, every_seconds=3600))
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        order = [(type(report).__name__, report.step) for report in reports if hasattr(report, "step")]
        assert order.index(("Saved", 1)) > order.index(("Stepped", 5))
        assert {step for kind, step in order if kind == "Saved"}.isdisjoint({2, 3, 4})


def test_the_base_is_named_in_every_manifest(inputs, at_step_3):
    manifest = json.loads((at_step_3 / "manifest.json").read_text())
    assert (manifest["base_sha"], manifest["step"]) == (BASE_SHA, 3)
