"""Several processes share one run: the same losses, whole adapters, one stop for all."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from schemas.base import FailureClass
from schemas.specification import LoraSpec, Method, Recipe
from schemas.training import PackingVerdict
from services.trainer_agent.protocol import (
    STOP,
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Report,
    ResumeChecked,
    Saved,
    Stepped,
    TrainingOrder,
)
from services.trainer_agent.training import resume
from services.trainer_agent.training.bundle import STATE, BundleState
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import prepare
from shared.ports import free_port
from tests.training.jobs import (
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    end_all,
    log_in,
    model_sha256,
    model_weights,
    reports_in,
    reports_of,
    start_gang_node,
    wait_for_exit,
    wait_for_step,
)
from tests.training.ranks import in_each_rank, run_gang

# No dropout: each process draws its own, so only runs without it can be equal.
LORA = a_recipe(lora=LoraSpec(rank=4), num_epochs=8)
SFT = a_recipe(method=Method.SFT, learning_rate=1e-3, num_epochs=1, gradient_checkpointing=True, batch_size=5)


@dataclass(frozen=True)
class Gang:
    order: TrainingOrder
    reports: tuple[Report, ...]

    @property
    def losses(self) -> list[float]:
        return [report.loss for report in reports_of(self.reports, Stepped)]

    @property
    def grad_norms(self) -> list[float]:
        return [report.grad_norm for report in reports_of(self.reports, Stepped)]

    @property
    def saved(self) -> list[Saved]:
        return reports_of(self.reports, Saved)


def two_processes(directory: Path, inputs, recipe: Recipe, **changes) -> Gang:
    order = an_order(inputs, recipe, devices_per_node=2, **changes)
    node = start_gang_node(directory, order)
    assert wait_for_exit(node, directory) == 0, log_in(directory)
    return Gang(order, reports_in(directory))


def forked_processes(directory: Path, inputs, recipe: Recipe, **changes) -> Gang:
    """As `two_processes`, without torchrun."""
    order = an_order(inputs, recipe, devices_per_node=2, **changes)
    return Gang(order, run_gang(directory, order))


def one_process(directory: Path, inputs, recipe: Recipe, **changes) -> Gang:
    order = an_order(inputs, recipe, **changes)
    return Gang(order, carry_out(directory, order))


def weights_of(saved: Saved) -> dict[str, torch.Tensor]:
    return model_weights(saved.directory)


def assert_close(actual: Saved, expected: Saved, *, atol: float) -> None:
    actual_weights, expected_weights = weights_of(actual), weights_of(expected)
    assert actual_weights.keys() == expected_weights.keys()
    for name, weight in expected_weights.items():
        torch.testing.assert_close(actual_weights[name], weight, atol=atol, rtol=0, msg=name)


@pytest.fixture(scope="module")
def gang(inputs, tmp_path_factory) -> Gang:
    return two_processes(tmp_path_factory.mktemp("gang") / "work", inputs, LORA)


@pytest.fixture(scope="module")
def alone(inputs, tmp_path_factory) -> Gang:
    return one_process(tmp_path_factory.mktemp("alone") / "work", inputs, LORA)


@pytest.fixture(scope="module")
def attempts(inputs, gang, tmp_path_factory) -> list[Gang]:
    """Two processes, then one, then two: as an elastic job trains."""
    folder = tmp_path_factory.mktemp("elastic")
    runs = [gang]
    for number, run in enumerate((one_process, forked_processes), 2):
        bundle = as_bundle(runs[-1].order, runs[-1].saved[0], folder / f"bundle-{number}")
        runs.append(run(folder / str(number), inputs, LORA, resume_dir=bundle))
    return runs


@pytest.fixture(scope="module")
def stopped(inputs, tmp_path_factory) -> list[Gang]:
    """Two nodes of one process each; only the second is told to stop."""
    order = an_order(inputs, LORA, nodes=2)
    port = free_port()
    work_dirs = [tmp_path_factory.mktemp("nodes") / str(node) for node in (0, 1)]
    nodes = [start_gang_node(work_dirs[n], order, node=n, port=port) for n in (0, 1)]
    try:
        wait_for_step(nodes[0], work_dirs[0], 4)
        (work_dirs[1] / STOP).write_text("preempt")
        for node, work_dir in zip(nodes, work_dirs, strict=True):
            wait_for_exit(node, work_dir)
            [ended] = reports_of(reports_in(work_dir), Ended)
            assert ended.outcome is Outcome.STOPPED, log_in(work_dir)
    finally:
        end_all(*nodes)
    return [Gang(order, reports_in(work_dir)) for work_dir in work_dirs]


class TestTwoProcesses:
    def test_agree_with_one(self, gang, alone):
        [preflight], [preflight_alone] = (reports_of(each.reports, PreflightDone) for each in (gang, alone))
        preparation, preparation_alone = preflight.preparation, preflight_alone.preparation
        assert (preparation.world_size, preparation.packing) == (2, PackingVerdict.PROVED)
        assert preparation.summed_bytes_per_second > 1_000_000
        assert preparation.num_trainable == preparation_alone.num_trainable
        assert gang.losses == pytest.approx(alone.losses, abs=1e-4)
        # The optimizer does not care for the gradient's scale; the norm shows it.
        assert gang.grad_norms == pytest.approx(alone.grad_norms, rel=1e-3)
        assert gang.saved[-1].metrics.by_name == pytest.approx(alone.saved[-1].metrics.by_name, abs=1e-4)
        assert_close(gang.saved[-1], alone.saved[-1], atol=1e-4)

    def test_write_slices_each_and_the_adapter_once(self, gang):
        paths = {entry.path for entry in gang.saved[-1].all_parts}
        assert {f"{folder}/rank-{r}.safetensors" for folder in ("optimizer", "rng") for r in (0, 1)} < paths
        assert sum(path.startswith("model/") for path in paths) == 2
        whole = sum(
            t.numel() for t in load_file(gang.saved[-1].directory / "optimizer/rank-0.safetensors").values()
        )
        assert whole < 2 * sum(t.numel() for t in weights_of(gang.saved[-1]).values())

    def test_their_bundle_is_resumed_by_one_and_not_called_exact(self, inputs, gang, alone, tmp_path):
        bundle = as_bundle(gang.order, gang.saved[1], tmp_path / "bundle")
        resumed = one_process(tmp_path / "work", inputs, LORA, resume_dir=bundle)
        [checked] = reports_of(resumed.reports, ResumeChecked)
        assert not checked.certificate.exact
        assert checked.certificate.reason == "number of processes: expected 2, found 1"
        assert checked.certificate.expected_batch_sha256 == checked.certificate.found_batch_sha256
        assert resumed.losses == pytest.approx(alone.losses[6:], abs=1e-4)
        assert_close(resumed.saved[-1], alone.saved[-1], atol=1e-4)

    def test_each_continues_from_its_own_slices_alone(self, gang, tmp_path):
        bundle = as_bundle(gang.order, gang.saved[1], tmp_path / "bundle")
        order = gang.order.model_copy(update={"resume_dir": bundle})
        in_each_rank(record_what_is_read, a_work_dir(tmp_path / "work", order), order)
        for rank in (0, 1):
            assert (tmp_path / "work" / f"read-{rank}").read_text() == f"rank-{rank}.safetensors"

    def test_a_damaged_part_ends_both_by_its_name(self, gang, tmp_path):
        """Each looks at half of the files."""
        for name in ("optimizer/rank-0.safetensors", "optimizer/rank-1.safetensors", "state.json"):
            bundle = as_bundle(gang.order, gang.saved[1], tmp_path / name / "bundle")
            (bundle / name).write_bytes((bundle / name).read_bytes()[:-1] + b"?")
            order = gang.order.model_copy(update={"resume_dir": bundle})
            in_each_rank(require_refusal, order, name)


def record_what_is_read(world, work_dir: Path, order: TrainingOrder) -> None:
    opened, open_file = [], resume.safe_open

    def recorded(path: Path, **options):
        opened.append(path.name)
        return open_file(path, **options)

    resume.safe_open = recorded
    prepare(order, work_dir, world, Reports(work_dir, world))
    (work_dir / f"read-{world.rank}").write_text(",".join(opened))


def require_refusal(world, order: TrainingOrder, name: str) -> None:
    with pytest.raises(TrainingFailed, match=f"{name} is not what the manifest names") as failure:
        resume.open_bundle(order.resume_dir, order, world)
    assert failure.value.failure_class is FailureClass.INFRA


class TestTwoNodes:
    def test_stop_at_the_same_step_though_only_one_was_asked(self, stopped):
        lasts = [gang.saved[-1] for gang in stopped]
        assert [saved.bundle for saved in lasts] == [BundleKind.EMERGENCY] * 2
        assert lasts[0].step == lasts[1].step == len(stopped[0].losses) == len(stopped[1].losses)

    def test_each_report_their_own_files_and_the_first_all(self, stopped):
        first, second = (gang.saved[-1] for gang in stopped)
        assert {entry.path for entry in second.parts} == {
            "optimizer/rank-1.safetensors",
            "optimizer/rank-1.json",
            "rng/rank-1.safetensors",
        }
        assert set(first.all_parts) == {*first.parts, *second.parts}
        assert not second.all_parts

    def test_their_bundle_is_resumed_by_one_node_with_half_of_each_copy(
        self, inputs, gang, stopped, tmp_path
    ):
        first, second = (node.saved[-1] for node in stopped)
        bundle = as_bundle(stopped[0].order, first, tmp_path / "bundle")
        shutil.copytree(second.directory, bundle, dirs_exist_ok=True)
        resumed = forked_processes(tmp_path / "work", inputs, LORA, resume_dir=bundle)
        [checked] = reports_of(resumed.reports, ResumeChecked)
        assert checked.certificate.reason == "copies of the weights: expected 2, found 1"
        assert model_sha256(resumed.saved[-1]) == model_sha256(gang.saved[-1])


class TestAnotherNumberOfProcesses:
    def test_each_begins_where_the_one_before_has_saved_and_says_that_it_is_not_exact(self, attempts):
        changed = [("2", "1", attempts[0].saved[0].step), ("1", "2", attempts[1].saved[0].step)]
        for attempt, (before, after, step) in zip(attempts[1:], changed, strict=True):
            [checked] = reports_of(attempt.reports, ResumeChecked)
            assert checked.certificate.reason == f"number of processes: expected {before}, found {after}"
            assert not checked.certificate.exact
            assert checked.certificate.step == step
            assert checked.certificate.found_batch_sha256 == checked.certificate.expected_batch_sha256
            assert reports_of(attempt.reports, Stepped)[0].step == step + 1

    def test_the_losses_and_weights_are_those_of_a_run_that_nothing_stopped(self, attempts, alone):
        steps: dict[int, float] = {}
        for attempt in attempts:
            steps |= {each.step: each.loss for each in reports_of(attempt.reports, Stepped)}
        assert [steps[step] for step in sorted(steps)] == pytest.approx(alone.losses, abs=1e-4)
        assert_close(attempts[-1].saved[-1], alone.saved[-1], atol=1e-3)

    def test_every_row_is_trained_on_as_often_as_in_a_run_that_nothing_stopped(self, attempts, alone):
        whole, elastic = (run.saved[-1].directory / STATE for run in (alone, attempts[-1]))
        assert consumed(elastic) == consumed(whole) != ""


def consumed(state: Path) -> str:
    """Chain over all batches since step 0."""
    return BundleState.model_validate_json(state.read_bytes()).consumed_sha256


class TestFullWeights:
    def test_two_processes_agree_with_one_and_one_resumes_from_them(self, inputs, tmp_path):
        gang = forked_processes(tmp_path / "gang", inputs, SFT)
        alone = one_process(tmp_path / "alone", inputs, SFT)
        assert gang.losses == pytest.approx(alone.losses, abs=1e-4)
        assert gang.grad_norms == pytest.approx(alone.grad_norms, rel=1e-3)
        assert_close(gang.saved[-1], alone.saved[-1], atol=1e-3)
        bundle = as_bundle(gang.order, gang.saved[0], tmp_path / "bundle")
        resumed = one_process(tmp_path / "resumed", inputs, SFT, resume_dir=bundle)
        assert resumed.losses == pytest.approx(alone.losses[gang.saved[0].step :], abs=1e-4)
        assert model_sha256(gang.saved[-1]) != model_sha256(gang.saved[0])


def test_a_process_that_dies_ends_its_peers_with_infra(inputs, tmp_path):
    order = an_order(inputs, a_recipe(num_epochs=50), devices_per_node=2)
    node = start_gang_node(tmp_path / "work", order)
    wait_for_step(node, tmp_path / "work", 2)
    kill_rank(node.pid, 1)
    assert wait_for_exit(node, tmp_path / "work") != 0
    [ended] = reports_of(reports_in(tmp_path / "work"), Ended)
    assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, FailureClass.INFRA)


def kill_rank(torchrun: int, rank: int) -> None:
    [worker] = [
        child for child in psutil.Process(torchrun).children() if child.environ().get("RANK") == str(rank)
    ]
    worker.kill()
