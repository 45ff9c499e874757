"""DeepSpeed's ZeRO in the place of FSDP2: the same losses and weights, our own bundles, exact resume."""

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bench.training.families import build
from schemas.memory import BUCKET_VALUES
from schemas.specification import LoraSpec, Method, Recipe, ShardingSpec
from services.trainer_agent.protocol import Outcome, Report, ResumeChecked, Saved, Stepped, TrainingOrder
from services.trainer_agent.training import loss
from services.trainer_agent.training.bundle import RankIndex
from services.trainer_agent.training.distributed import World, joined
from services.trainer_agent.training.loop import train
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.setup import prepare
from services.trainer_agent.training.sharding.zero import configuration
from services.trainer_agent.training.step import _gradient, next_loss
from services.trainer_agent.training.stop import StopRequest
from tests.chaos.scale import at_night
from tests.training.jobs import (
    ONE_PROCESS,
    Inputs,
    a_recipe,
    a_work_dir,
    an_order,
    as_bundle,
    carry_out,
    model_sha256,
    model_weights,
    reports_in,
    reports_of,
)
from tests.training.ranks import in_a_process, in_each_rank, kill_after_first_bundle, run_gang
from tests.training.test_fsdp import growth_of, write_bases

NIGHT = at_night("cases like it at each change")
RATES = {Method.LORA: 5e-3, Method.QLORA: 5e-3, Method.SFT: 1e-3}
Gang = tuple[TrainingOrder, tuple[Report, ...]]


def zero(stage: int, *, offload: bool = False) -> ShardingSpec:
    return ShardingSpec(library="deepspeed", stage=stage, offload_optimizer=offload)


VARIANTS = [
    (Method.LORA, zero(1)),
    (Method.LORA, zero(3)),
    (Method.SFT, zero(1)),
    (Method.SFT, zero(2, offload=True)),
    pytest.param(Method.SFT, zero(3), marks=NIGHT),
    (Method.SFT, zero(3, offload=True)),
    (Method.QLORA, zero(3)),
]
"""Stage 2 without offload is in test_compatibility.py."""


def recipe_of(method: Method, sharding: ShardingSpec, precision: str = "float32") -> Recipe:
    """Two micro batches a step for each of two processes. Without dropout, of which each draws its own."""
    return a_recipe(
        method=method,
        lora=LoraSpec() if method is Method.SFT else LoraSpec(rank=4),
        learning_rate=RATES[method],
        num_epochs=1,
        batch_size=8,
        gradient_checkpointing=sharding.stage == 3,
        sharding=sharding,
        precision=precision,
    )


@pytest.fixture(scope="module")
def gang(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Gang]:
    """A run of two processes."""

    @cache
    def run(method: Method, sharding: ShardingSpec, precision: str = "float32") -> Gang:
        order = an_order(inputs, recipe_of(method, sharding, precision), devices_per_node=2)
        return order, run_gang(tmp_path_factory.mktemp("gang"), order)

    return run


def losses(reports: tuple[Report, ...]) -> list[float]:
    return [report.loss for report in reports_of(reports, Stepped)]


def norms(reports: tuple[Report, ...]) -> list[float]:
    return [report.grad_norm for report in reports_of(reports, Stepped)]


def weights(saved: Saved) -> dict:
    return model_weights(saved.directory)


def assert_close(actual: Saved, expected: Saved) -> None:
    trained = weights(actual)
    assert trained.keys() == weights(expected).keys()
    for name, weight in weights(expected).items():
        assert float((trained[name] - weight).abs().max()) < 1e-5, name


@pytest.mark.parametrize(("method", "sharding"), VARIANTS, ids=str)
def test_two_processes_take_the_steps_of_fsdp2(gang, method, sharding):
    """Whose two processes take those of one: test_gang.py."""
    (_, reports), (_, expected) = gang(method, sharding), gang(method, ShardingSpec())
    assert len(losses(reports)) == 4
    assert losses(reports) == pytest.approx(losses(expected), abs=1e-6)
    assert norms(reports) == pytest.approx(norms(expected), rel=1e-5)
    last, expected_last = reports_of(reports, Saved)[-1], reports_of(expected, Saved)[-1]
    assert last.metrics.by_name == pytest.approx(expected_last.metrics.by_name, rel=1e-6, abs=1e-6)
    assert_close(last, expected_last)


@pytest.mark.parametrize(
    ("family", "method", "chunk"),
    [
        ("Mixtral", Method.SFT, None),
        pytest.param("Llama", Method.SFT, 40, marks=NIGHT),
        ("Llama", Method.LORA, 40),
    ],
)
def test_in_stage_3_a_process_without_rows_calls_the_modules_that_the_other_calls(
    tmp_path, family, method, chunk
):
    """Of seven windows the last step has one: there is no router loss to the other's, and one chunk of logits."""
    inputs = build(family, tmp_path).inputs
    small = {"batch_size": 2, "micro_batch_size": 1}
    recipe = recipe_of(method, zero(3)).model_copy(update=small)
    alone = recipe.model_copy(update={"sharding": ShardingSpec()})
    expected = losses(carry_out(tmp_path / "one", an_order(inputs, alone)))
    order = an_order(inputs, recipe, devices_per_node=2)
    work_dir = a_work_dir(tmp_path / "two", order)
    in_each_rank(_train_in_chunks, work_dir, order, chunk)
    assert losses(reports_in(work_dir)) == pytest.approx(expected, abs=1e-4)


def _train_in_chunks(world: World, work_dir: Path, order: TrainingOrder, num_targets: int | None) -> None:
    run, _ = prepare(order, work_dir, world, Reports(work_dir, world))
    if num_targets is not None:
        vocabulary = run.network.causal_lm.config.vocab_size
        loss.LOGITS_PER_CHUNK = num_targets * vocabulary
    assert train(run, StopRequest(work_dir), None) is Outcome.COMPLETED


@pytest.mark.parametrize("method", [Method.LORA, pytest.param(Method.SFT, marks=NIGHT)])
def test_in_bfloat16_stage_3_stays_near_float32(gang, method):
    losses_of = {
        precision: losses(gang(method, zero(3), precision)[1]) for precision in ("float32", "bfloat16")
    }
    assert losses_of["bfloat16"] != losses_of["float32"]
    assert losses_of["bfloat16"] == pytest.approx(losses_of["float32"], abs=0.05)


@at_night("ten seconds; the same of FSDP2 at each change")
def test_with_stage_3_a_rank_has_no_more_of_the_base_in_memory_than_its_share(tmp_path):
    write_bases(tmp_path, "llama", {"intermediate_size": 2048}, 8)
    for in_rows in (True, False):
        in_each_rank(_read_in_little_memory, tmp_path, in_rows)


def _read_in_little_memory(world: World, folder: Path, in_rows: bool) -> None:
    """Beside it DeepSpeed has buffers of its own, and only the first rank reads."""
    growth = growth_of(world, folder, recipe_of(Method.LORA, zero(3)), in_rows=in_rows)
    assert growth < 1.1 if in_rows else growth > 1.4, growth


@pytest.mark.parametrize("sharding", [zero(1), zero(3, offload=True)], ids=str)
def test_each_value_of_each_tensor_is_in_the_slice_of_one_rank(gang, sharding):
    last = reports_of(gang(Method.SFT, sharding)[1], Saved)[-1]
    trained = weights(last)
    covered = dict.fromkeys(trained, 0)
    for rank in (0, 1):
        index = RankIndex.model_validate_json((last.directory / f"optimizer/rank-{rank}.json").read_text())
        moments = load_file(last.directory / index.file)
        for each in index.slices:
            assert each.offsets == (covered[each.tensor],), "a later rank has what comes behind"
            covered[each.tensor] += each.shape[0]
            for part in ("exp_avg", "exp_avg_sq"):
                assert tuple(moments[f"{each.tensor}.{part}"].shape) == each.shape
    assert covered == {name: weight.numel() for name, weight in trained.items()}


@pytest.mark.parametrize("sharding", [zero(1), zero(3, offload=True)], ids=str)
def test_a_bundle_of_two_processes_is_resumed_by_one_and_not_called_exact(gang, inputs, tmp_path, sharding):
    method = Method.LORA if sharding.stage == 1 else Method.SFT
    order, reports = gang(method, sharding)
    bundle = as_bundle(order, reports_of(reports, Saved)[0], tmp_path / "bundle")
    alone = an_order(inputs, order.recipe, resume_dir=bundle)
    resumed = run_gang(tmp_path / "alone", alone)
    [checked] = reports_of(resumed, ResumeChecked)
    assert not checked.certificate.exact
    assert checked.certificate.reason == "number of processes: expected 2, found 1"
    assert losses(resumed) == pytest.approx(losses(reports)[3:], abs=1e-6)
    assert_close(reports_of(resumed, Saved)[-1], reports_of(reports, Saved)[-1])


@pytest.mark.parametrize("stage", [pytest.param(2, marks=NIGHT), 3])
def test_both_processes_are_killed_and_the_run_ends_in_the_same_bytes(inputs, tmp_path, stage):
    """With dropout, whose random numbers each process has its own of."""
    order = an_order(inputs, a_recipe(num_epochs=1, sharding=zero(stage)), devices_per_node=2)
    whole = run_gang(tmp_path / "whole", order)
    kill_after_first_bundle(tmp_path / "killed", order)
    first = reports_of(reports_in(tmp_path / "killed"), Saved)[0]
    bundle = as_bundle(order, first, tmp_path / "bundle")
    resumed = run_gang(tmp_path / "resumed", order.model_copy(update={"attempt": 2, "resume_dir": bundle}))
    [checked] = reports_of(resumed, ResumeChecked)
    assert checked.certificate.exact, checked.certificate.reason
    assert losses(resumed) == losses(whole)[first.step :]
    assert model_sha256(reports_of(resumed, Saved)[-1]) == model_sha256(reports_of(whole, Saved)[-1])


def test_what_is_taken_back_leaves_nothing_behind_and_nothing_is_compiled(inputs, tmp_path):
    for number, sharding in enumerate((zero(1), zero(2, offload=True), zero(3), zero(3, offload=True))):
        recipe = recipe_of(Method.LORA, sharding).model_copy(update={"batch_size": 4})
        order = an_order(inputs, recipe)
        in_a_process(_take_back, a_work_dir(tmp_path / str(number), order), order)


def _take_back(work_dir: Path, order: TrainingOrder) -> None:
    """A gradient, and weights that passes computed with. What is compiled would be in a folder of its own."""
    extensions = work_dir / "extensions"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions)
    stop = StopRequest(work_dir)
    with joined(ONE_PROCESS, even_alone=True):
        run, _ = prepare(order, work_dir, ONE_PROCESS, Reports(work_dir, ONE_PROCESS))
        expected = _gradient(run, run.next_plan(), stop)
        assert expected.is_finite
        for factor, is_complete in ((1.0, False), (math.nan, True)):
            run.sharding.drop_gradients()
            for last, micro_batch in enumerate(run.share_of(run.next_plan())[:2]):
                terms = run.objective.terms(run.sharding.training_network, micro_batch, run.device)
                run.sharding.backward(terms.losses.sum() * factor, is_last=bool(last) and is_complete)
            if is_complete:
                assert not math.isfinite(run.sharding.clip_gradients())
            run.sharding.drop_gradients()
            assert _gradient(run, run.next_plan(), stop) == expected
        _compute_with_others(run)
        run.sharding.drop_gradients()
        assert _gradient(run, run.next_plan(), stop) == expected
    assert not extensions.exists()


def _compute_with_others(run: Run) -> None:
    """As a reference is, by the weights that training started from."""
    before, own = next_loss(run), [(live, live.clone()) for _, live in run.sharding.read_by_passes()]
    for live, _ in own:
        live.fill_(1.0)
    assert abs(next_loss(run) - before) > 1e-4
    for live, weight in own:
        live.copy_(weight)
    assert next_loss(run) == before


@pytest.mark.parametrize(("num_trained", "bucket"), [(1000, 1000), (10**10, BUCKET_VALUES)])
def test_the_bucket_for_gradients_is_no_larger_than_what_is_trained(num_trained, bucket):
    recipe = Recipe(sharding=ShardingSpec(library="deepspeed", stage=2))
    fields = configuration(recipe, ONE_PROCESS, num_trained=num_trained)["zero_optimization"]
    assert fields["reduce_bucket_size"] == bucket
