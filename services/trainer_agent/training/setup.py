"""From an order to a run that is ready for its first step."""

import logging
import math
from contextlib import suppress
from pathlib import Path

import torch

from schemas.base import FailureClass
from schemas.specification import Recipe
from schemas.training import PackingDistances, PackingVerdict, Preparation
from services.trainer_agent.protocol import PreflightDone, ResumeChecked, Started, TrainingOrder
from services.trainer_agent.training.attention import WITH_BORDERS
from services.trainer_agent.training.dataset import Dataset, load_dataset
from services.trainer_agent.training.device import check_device
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.memory import estimated_bytes, fitted, has_all_by_node
from services.trainer_agent.training.network import (
    build_network,
    compile_blocks,
    num_matmul_parameters,
    trainable,
)
from services.trainer_agent.training.plan import Layout
from services.trainer_agent.training.preflight import check_packing
from services.trainer_agent.training.quantized import num_values, quantized_base
from services.trainer_agent.training.reference import give_reference
from services.trainer_agent.training.repeatable import allow_what_the_model_needs, make_repeatable
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.resume import Bundle, certify, open_bundle, restore
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.sampler import Sampler
from services.trainer_agent.training.schedule import schedule_of
from services.trainer_agent.training.sharding import reads_when_sharded, shard
from services.trainer_agent.training.start import load_weights, shapes_of, weights_dir
from services.trainer_agent.training.stop import StopHeard, StopRequest
from services.trainer_agent.training.throughput import (
    device_memory_bytes,
    device_name,
    memory_bytes,
    peak_flops,
)
from services.trainer_agent.training.utilisation import meter_of

log = logging.getLogger(__name__)


def prepare(
    order: TrainingOrder, work_dir: Path, world: World, reports: Reports
) -> tuple[Run, Bundle | None]:
    """Load all, prove packing, restore what the order names. Reports each of it."""
    _check_world(order, world)
    summed_per_second = check_device(world)
    bundle = open_bundle(order.resume_dir, order, world) if order.resume_dir is not None else None
    make_repeatable(world, bundle.state.num_threads if bundle else None)
    dataset = load_dataset(
        order.dataset_dir,
        version=order.dataset_version,
        base_sha=order.base_sha,
        method=order.recipe.method,
    )
    network = build_network(
        order.recipe,
        weights_dir(order, bundle.directory if bundle else None),
        world.device,
        in_rows=reads_when_sharded(order.recipe, world),
    )
    order = fitted(
        network,
        order,
        world,
        max_seq_length=dataset.manifest.max_seq_length,
        before=bundle.state.recipe if bundle else None,
    )
    if order.recipe.gradient_checkpointing:
        network.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    _check_vocabulary(dataset, network)
    load_weights(order, bundle.directory if bundle else None, network)
    run = _assemble(order, work_dir, world, reports, dataset, network)
    run.summed_bytes_per_second = summed_per_second
    if bundle is not None:
        restore(run, bundle)
    _report_start(run)
    _choose_layout(run)
    return run, bundle


def compare(run: Run, bundle: Bundle | None, stop: StopRequest) -> None:
    """Compare the prepared run with the model at step 0, if its method asks for it, and with the bundle's run.

    A stop meanwhile leaves the rest out: it is heard again before the first step.
    """
    with suppress(StopHeard):
        give_reference(run, stop)
        allow_what_the_model_needs(run)
        if bundle is not None:
            run.reports.send(ResumeChecked(certificate=certify(run, bundle)))


def _assemble(
    order: TrainingOrder,
    work_dir: Path,
    world: World,
    reports: Reports,
    dataset: Dataset,
    network: TokenLosses,
) -> Run:
    matmul_parameters, all_parameters = num_matmul_parameters(network), num_values(network)
    estimated = estimated_bytes(network, order, max_seq_length=dataset.manifest.max_seq_length)
    quantized = quantized_base(network.causal_lm, order.base_dir)
    trained = shapes_of(trainable(network))
    by_node = has_all_by_node(network, order, world, max_seq_length=dataset.manifest.max_seq_length)
    if by_node:
        log.info("each of %d nodes has a copy of the weights, spread over its devices", order.nodes)
    if order.recipe.compile:
        compile_blocks(network)
    sharding = shard(network, order.recipe, world, by_node=by_node)
    sampler = _sampler_of(order.recipe, len(dataset.training))
    # Each rank draws its own dropout; a bundle carries every rank's state.
    torch.manual_seed(order.recipe.seed + world.rank)
    return Run(
        order=order,
        work_dir=work_dir,
        world=world,
        reports=reports,
        dataset=dataset,
        sampler=sampler,
        schedule=schedule_of(order.recipe, sampler.num_steps),
        layout=Layout(order.recipe.packing, order.recipe.micro_batch_size, dataset.manifest.max_seq_length),
        network=network,
        trained=trained,
        sharding=sharding,
        num_copies=order.nodes if by_node else 1,
        quantized=quantized,
        num_parameters=all_parameters,
        meter=meter_of(world.device),
        estimated_memory_bytes=estimated,
        num_matmul_parameters=matmul_parameters,
        peak_flops=peak_flops(world.device),
    )


def _sampler_of(recipe: Recipe, num_windows: int) -> Sampler:
    assert recipe.batch_size != "auto", "the recipe is resolved before training"
    assert recipe.num_epochs != "auto", "the recipe is resolved before training"
    return Sampler(recipe.seed, num_windows, recipe.batch_size, recipe.num_epochs)


def _check_world(order: TrainingOrder, world: World) -> None:
    if world.size != order.world_size:
        message = f"{world.size} processes were started, the order names {order.world_size}"
        raise TrainingFailed(FailureClass.INTERNAL, message)


def _check_vocabulary(dataset: Dataset, network: TokenLosses) -> None:
    largest = max(dataset.training.largest_token, dataset.validation.largest_token)
    table = network.causal_lm.get_input_embeddings().num_embeddings
    if largest >= table:
        message = f"dataset holds token {largest}, the base model knows 0 to {table - 1}: another tokenizer?"
        raise TrainingFailed(FailureClass.USER, message)


def _report_start(run: Run) -> None:
    run.reports.send(
        Started(
            num_steps=run.sampler.num_steps,
            start_step=run.step,
            world_size=run.world.size,
        )
    )


def _choose_layout(run: Run) -> None:
    verdict, distances = check_packing(run)
    if verdict is PackingVerdict.REFUSED and run.network.attention in WITH_BORDERS:
        log.warning(
            "attention %s does not keep packed examples apart: a mask takes its place", run.network.attention
        )
        run.network.use_masks()
        verdict, distances = check_packing(run)
    run.reports.send(PreflightDone(preparation=_preparation(run, verdict, distances)))
    if verdict is PackingVerdict.REFUSED:
        run.layout = Layout(False, run.layout.micro_batch_size, run.layout.max_seq_length)


def _preparation(run: Run, verdict: PackingVerdict, distances: PackingDistances | None) -> Preparation:
    recipe = run.order.recipe
    return Preparation(
        device=device_name(run.device),
        world_size=run.world.size,
        precision="float32" if run.network.compute_dtype is torch.float32 else "bfloat16",
        num_parameters=run.num_parameters,
        num_trainable=sum(math.prod(shape) for shape in run.trained.values()),
        batch_size=run.sampler.batch_size,
        micro_batch_size=recipe.micro_batch_size,
        attention=run.network.attention,
        gradient_checkpointing=run.network.causal_lm.is_gradient_checkpointing,
        compile=bool(recipe.compile),
        offload_optimizer=recipe.sharded.offload_optimizer,
        packing=verdict,
        distances=distances,
        memory_bytes=memory_bytes(run.device),
        estimated_memory_bytes=run.estimated_memory_bytes,
        device_memory_bytes=device_memory_bytes(run.device),
        summed_bytes_per_second=run.summed_bytes_per_second,
    )
