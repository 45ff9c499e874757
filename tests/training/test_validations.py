"""Validations at given steps: early stopping, the best checkpoint, and that no interruption changes either."""

import json
import random
import signal

import pytest

from schemas.base import FailureClass
from schemas.specification import CheckpointSpec, EarlyStoppingSpec, LoraSpec
from services.trainer_agent.protocol import (
    BundleKind,
    Ended,
    Outcome,
    ResumeChecked,
    Saved,
    Started,
    Stepped,
    Validated,
)
from services.trainer_agent.training.child import run_child
from services.trainer_agent.training.stop import StopRequest
from services.trainer_agent.training.validations import NO_VALIDATIONS
from tests.chaos.scale import note, seed
from tests.training.conftest import packed_windows
from tests.training.jobs import (
    ONE_PROCESS,
    Inputs,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    model_sha256,
    reports_in,
    reports_of,
    wait_for_exit,
    write_dataset,
)
from tests.training.ranks import fork_child, run_gang

EVERY = 4
PATIENCE = EarlyStoppingSpec(patience=3)
STEPS_PER_EPOCH, NUM_STEPS = 7, 140
OVERFITTING = a_recipe(
    num_epochs=NUM_STEPS // STEPS_PER_EPOCH,
    learning_rate=2e-2,
    eval_every_steps=EVERY,
    early_stopping=PATIENCE,
    load_best_model_at_end=True,
)
"""Its validation loss falls, and rises again long before the last step."""


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("undisturbed") / "work", an_order(inputs, OVERFITTING))


def losses_of(reports):
    return {each.step: each.metrics.full_valid_loss for each in reports_of(reports, Validated)}


def last_of(reports):
    saved = reports_of(reports, Saved)[-1]
    assert saved.bundle is BundleKind.FINAL
    return saved


def best_of(reports):
    """The bundle that becomes the model version."""
    best = last_of(reports).best
    return next(saved for saved in reversed(reports_of(reports, Saved)) if saved.step == best.step)


class TestEarlyStopping:
    def test_training_ends_once_the_loss_has_not_fallen_for_so_long(self, undisturbed):
        losses = losses_of(undisturbed)
        [ended] = reports_of(undisturbed, Ended)
        assert list(losses) == list(range(EVERY, ended.last_step + 1, EVERY))
        best = min(losses, key=losses.__getitem__)
        assert EVERY < best < ended.last_step == best + EVERY * PATIENCE.patience < NUM_STEPS
        assert ended.outcome is Outcome.COMPLETED
        assert ended.message == (
            f"ended early at step {ended.last_step} of {NUM_STEPS}: in 3 validations in a row the loss was not below "
            f"{losses[best]:.4f}"
        )
        assert reports_of(undisturbed, Stepped)[-1].step == last_of(undisturbed).step == ended.last_step
        assert [each.is_last for each in reports_of(undisturbed, Validated)] == [False] * (
            len(losses) - 1
        ) + [True]

    def test_until_then_nothing_differs_from_a_run_without_it(self, inputs, undisturbed, tmp_path):
        plain = OVERFITTING.model_copy(
            update={"early_stopping": None, "load_best_model_at_end": False, "eval_every_steps": None}
        )
        reports = carry_out(tmp_path / "work", an_order(inputs, plain))
        losses = [each.loss for each in reports_of(undisturbed, Stepped)]
        assert [each.loss for each in reports_of(reports, Stepped)][: len(losses)] == losses
        assert len(reports_of(reports, Stepped)) == NUM_STEPS
        assert not reports_of(reports, Validated)

    def test_without_a_number_of_steps_it_looks_once_an_epoch_and_after_the_last_step(self, inputs, tmp_path):
        recipe = a_recipe(num_epochs=2, early_stopping=PATIENCE)
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        assert list(losses_of(reports)) == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
        [ended] = reports_of(reports, Ended)
        assert (ended.outcome, ended.message) == (Outcome.COMPLETED, "")

    def test_a_dataset_without_validation_rows_is_the_users_failure(self, inputs, tmp_path):
        windows = packed_windows(inputs.base_dir, "Seven words of which a window is made. " * 60)[:4]
        empty = Inputs(inputs.base_dir, write_dataset(tmp_path / "dataset", windows, num_parts=1))
        recipe = a_recipe(num_epochs=1, early_stopping=PATIENCE)
        [ended] = reports_of(carry_out(tmp_path / "work", an_order(empty, recipe)), Ended)
        assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.USER)
        assert "no validation rows" in ended.message


class TestNumbers:
    def test_bundles_have_the_numbers_of_their_step_and_no_others(self, undisturbed):
        measured = {each.step: each.metrics for each in reports_of(undisturbed, Validated)}
        for saved in reports_of(undisturbed, Saved):
            if saved.step in measured:
                assert saved.metrics == measured[saved.step]
            else:
                assert saved.metrics.by_name.keys() == {"train_loss"}

    def test_the_loss_on_all_windows_is_that_of_a_run_that_looks_at_the_end_alone(self, inputs, tmp_path):
        """`valid_loss` is over the same windows as it was, here all of them."""
        plain, looking = (
            carry_out(tmp_path / str(every), an_order(inputs, a_recipe(eval_every_steps=every)))
            for every in (None, 5)
        )
        assert list(losses_of(looking)) == [5, 10, 14]
        assert last_of(looking).metrics == last_of(plain).metrics
        assert model_sha256(last_of(looking)) == model_sha256(last_of(plain))
        metrics = last_of(looking).metrics
        assert metrics.valid_loss == metrics.full_valid_loss


class TestBest:
    def test_its_bundle_is_written_where_it_was_measured(self, undisturbed):
        losses, lowest, bests = losses_of(undisturbed), float("inf"), []
        for step, loss in losses.items():
            if loss < lowest:
                lowest, bests = loss, [*bests, step]
        saved = {each.step: each for each in reports_of(undisturbed, Saved)}
        assert bests[-1] < max(losses)
        assert set(bests) <= saved.keys()
        assert all(
            (saved[step].best.step, saved[step].best.valid_loss) == (step, losses[step]) for step in bests
        )
        assert last_of(undisturbed).best == saved[bests[-1]].best

    def test_each_later_bundle_names_it(self, undisturbed):
        for saved in reports_of(undisturbed, Saved):
            before = {step: loss for step, loss in losses_of(undisturbed).items() if step <= saved.step}
            best = min(before, key=before.__getitem__, default=None)
            assert (saved.best and saved.best.step) == best

    def test_who_does_not_ask_for_it_gets_no_bundle_of_it(self, inputs, undisturbed, tmp_path):
        rare = CheckpointSpec(every_steps=10_000, every_seconds=3600)
        recipe = OVERFITTING.model_copy(update={"load_best_model_at_end": False, "checkpoint": rare})
        reports = carry_out(tmp_path / "work", an_order(inputs, recipe))
        [saved] = reports_of(reports, Saved)
        assert (saved.best, saved.step) == (None, last_of(undisturbed).step)
        assert model_sha256(saved) == model_sha256(last_of(undisturbed))


class TestInterruptions:
    @pytest.mark.parametrize(
        "failpoint",
        [
            "trainer.validation.microbatch=kill@{}",
            "trainer.validation.end=kill@{}",
            "trainer.save.begin=kill@{}",
            "trainer.save.end=kill@{}",
            "trainer.step.end=kill@{}",
        ],
    )
    def test_a_kill_at_any_place_ends_in_the_same_step_with_the_same_bytes(
        self, inputs, undisturbed, tmp_path, monkeypatch, failpoint
    ):
        most = reports_of(undisturbed, Ended)[0].last_step if "step" in failpoint else 7
        number = random.Random(f"{seed()}{failpoint}").randint(3, most)
        monkeypatch.setenv("FAILPOINTS", failpoint.format(number))
        order, work_dir = an_order(inputs, OVERFITTING), tmp_path / "killed"
        child = fork_child(work_dir, order)
        assert wait_for_exit(child, work_dir) == -signal.SIGKILL, f"{failpoint} {number} was never passed"
        note("training killed", kills=1)
        monkeypatch.delenv("FAILPOINTS")
        killed = reports_in(work_dir)
        saved = reports_of(killed, Saved)[-1]
        after = self.resumed(inputs, order, saved, tmp_path)
        self.ends_alike(undisturbed, after, earlier=killed, from_step=saved.step)

    def test_a_stop_in_a_validation_forgets_it_and_the_next_attempt_measures_again(
        self, inputs, undisturbed, tmp_path
    ):
        order = an_order(inputs, OVERFITTING)
        work_dir = a_work_dir(tmp_path / "stopped", order)
        assert run_child(work_dir, ONE_PROCESS, StopInValidation(work_dir, number=3)) is Outcome.STOPPED
        stopped = reports_in(work_dir)
        saved = reports_of(stopped, Saved)[-1]
        assert (saved.bundle, saved.step) == (BundleKind.EMERGENCY, 3 * EVERY)
        assert list(losses_of(stopped)) == [EVERY, 2 * EVERY]
        after = self.resumed(inputs, order, saved, tmp_path)
        assert next(iter(losses_of(after))) == saved.step
        self.ends_alike(undisturbed, after, earlier=stopped, from_step=saved.step)

    def test_a_stop_in_the_validation_after_the_last_step_completes_in_the_next_attempt(
        self, inputs, tmp_path
    ):
        recipe = a_recipe(num_epochs=1, eval_every_steps=EVERY, load_best_model_at_end=True)
        whole = carry_out(tmp_path / "whole", an_order(inputs, recipe))
        work_dir = a_work_dir(tmp_path / "stopped", an_order(inputs, recipe))
        assert run_child(work_dir, ONE_PROCESS, StopInValidation(work_dir, number=2)) is Outcome.STOPPED
        saved = reports_of(reports_in(work_dir), Saved)[-1]
        assert (saved.bundle, saved.step) == (BundleKind.EMERGENCY, STEPS_PER_EPOCH)
        after = self.resumed(inputs, an_order(inputs, recipe), saved, tmp_path)
        assert not reports_of(after, Stepped)
        assert not last_of(after).reused
        assert last_of(after).best == last_of(whole).best
        assert model_sha256(last_of(after)) == model_sha256(last_of(whole))

    def test_a_bundle_after_which_nothing_follows_completes_as_it_is(self, inputs, undisturbed, tmp_path):
        order = an_order(inputs, OVERFITTING)
        after = self.resumed(inputs, order, last_of(undisturbed), tmp_path)
        [started], [ended] = reports_of(after, Started), reports_of(after, Ended)
        assert started.start_step == ended.last_step
        assert not reports_of(after, Stepped) + reports_of(after, Validated)
        assert last_of(after).reused
        assert (ended.outcome, ended.message) == (
            Outcome.COMPLETED,
            reports_of(undisturbed, Ended)[0].message,
        )

    def resumed(self, inputs, order, saved, directory):
        bundle = as_bundle(order, saved, directory / "bundle")
        return carry_out(directory / "resumed", order.model_copy(update={"attempt": 2, "resume_dir": bundle}))

    def ends_alike(self, undisturbed, after, *, earlier, from_step):
        [checked], [ended] = reports_of(after, ResumeChecked), reports_of(after, Ended)
        assert checked.certificate.exact, checked.certificate.reason
        assert ended == reports_of(undisturbed, Ended)[0]
        known = {step: loss for step, loss in losses_of(earlier).items() if step <= from_step}
        assert known | losses_of(after) == losses_of(earlier) | losses_of(after) == losses_of(undisturbed)
        ends = [(last_of(reports).directory / "state.json").read_text() for reports in (undisturbed, after)]
        assert ends[0] == ends[1]
        assert json.loads(ends[0])["validations"] != NO_VALIDATIONS.model_dump()
        assert model_sha256(last_of(after)) == model_sha256(last_of(undisturbed))
        both = (*earlier, *after)
        assert model_sha256(best_of(both)) == model_sha256(best_of(undisturbed))


class StopInValidation(StopRequest):
    """Heard in the validation of that number, between its micro batches."""

    def __init__(self, work_dir, *, number):
        super().__init__(work_dir)
        self._work_dir = work_dir
        self._number = number
        self._questions = 0

    @property
    def is_there(self):
        reports = reports_in(self._work_dir)
        is_at_it = (
            len(reports_of(reports, Validated)) == self._number - 1
            and reports_of(reports, Stepped)
            and reports_of(reports, Stepped)[-1].step in (self._number * EVERY, STEPS_PER_EPOCH)
        )
        # The first question is asked before the validation.
        self._questions += bool(is_at_it)
        return self._questions > 1


def test_two_processes_end_in_the_step_of_one(inputs, tmp_path):
    """At a rate that does not make rounding grow; no loss falls by a whole nat, so that the run ends."""
    early_stopping = EarlyStoppingSpec(patience=3, min_delta=1.0)
    recipe = a_recipe(
        lora=LoraSpec(rank=4), num_epochs=8, eval_every_steps=EVERY, early_stopping=early_stopping
    )
    recipe = recipe.model_copy(update={"load_best_model_at_end": True})
    one = carry_out(tmp_path / "one", an_order(inputs, recipe))
    two = run_gang(tmp_path / "two", an_order(inputs, recipe, devices_per_node=2))
    assert reports_of(one, Ended)[0].last_step == 4 * EVERY
    assert reports_of(two, Ended)[0].last_step == reports_of(one, Ended)[0].last_step
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-4)
    assert last_of(two).best.step == last_of(one).best.step
