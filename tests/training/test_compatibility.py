"""Each row of the compatibility table in each of its precisions, on CPU processes in the place of devices."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from schemas.compatibility import ROWS, Row
from schemas.specification import LoraSpec, Method, Recipe, ShardingLibrary, ShardingSpec, Weights
from schemas.training import PackingVerdict
from services.trainer_agent.protocol import (
    Ended,
    Outcome,
    PreflightDone,
    Report,
    Started,
    Stepped,
)
from tests.chaos.scale import at_night
from tests.training.jobs import (
    Inputs,
    a_recipe,
    an_order,
    carry_out,
    reports_of,
)
from tests.training.ranks import run_gang

NIGHT = at_night("each row has its first method in float32 at each change")


def cases() -> list[ParameterSet]:
    """What differs between methods is the batch and the loss, which tests of their own prove on one process."""
    first = [
        pytest.param(row, row.methods[0], precision, marks=[NIGHT] if precision != "float32" else [])
        for row in ROWS
        for precision in sorted(row.precisions)
    ]
    others = [
        pytest.param(row, method, "float32", marks=NIGHT)
        for row in ROWS
        if row.tested_at == (1, 2)
        for method in row.methods[1:]
    ]
    return first + others


def recipe_of(
    method: Method,
    weights: Weights,
    quantization: str | None,
    precision: str,
    library: ShardingLibrary = "fsdp2",
) -> Recipe:
    # Without dropout, of which each process draws its own, all of them take the same steps.
    learning_rate = 5e-3 if weights == "adapter" else 1e-3
    lora = LoraSpec(rank=4) if weights == "adapter" else LoraSpec()
    what = {"method": method, "weights": weights, "lora": lora, "sharding": ShardingSpec(library=library)}
    what |= {"quantization": quantization}
    return a_recipe(**what, learning_rate=learning_rate, num_epochs=1, precision=precision)


def quantization_of(row: Row, method: Method) -> str | None:
    return None if row.quantization == "none" or method is Method.QLORA else row.quantization


@pytest.fixture(scope="module")
def expected(
    inputs, texts, preferences, tmp_path_factory
) -> Callable[[Method, Weights, str | None], list[float]]:
    """Losses of one process in float32."""

    @cache
    def losses(method: Method, weights: Weights, quantization: str | None) -> list[float]:
        files = files_of(method, inputs, texts, preferences)
        order = an_order(files, recipe_of(method, weights, quantization, "float32"))
        return losses_of(carry_out(tmp_path_factory.mktemp("alone") / "work", order))

    return losses


def files_of(method: Method, inputs: Inputs, texts: Inputs, preferences: Inputs) -> Inputs:
    return {Method.CPT: texts, Method.DPO: preferences}.get(method, inputs)


def losses_of(reports: Sequence[Report]) -> list[float]:
    return [report.loss for report in reports_of(reports, Stepped)]


def train(directory: Path, inputs: Inputs, row: Row, recipe: Recipe) -> tuple[Report, ...]:
    """The reports of the first node of a gang of the size that the row says it was tested at."""
    nodes, devices = row.tested_at
    order = an_order(inputs, recipe, nodes=nodes, devices_per_node=devices)
    if nodes * devices == 1:
        return carry_out(directory / "work", order)
    return run_gang(directory, order)


@pytest.mark.parametrize(("row", "method", "precision"), cases(), ids=str)
def test_what_the_table_admits_trains_as_one_process_in_float32_does(
    inputs, texts, preferences, expected, tmp_path, row, method, precision
):
    library: ShardingLibrary = "deepspeed" if row.sharding == "deepspeed" else "fsdp2"
    quantization = quantization_of(row, method)
    recipe = recipe_of(method, row.weights, quantization, precision, library)
    reports = train(tmp_path, files_of(method, inputs, texts, preferences), row, recipe)
    [started], [ended] = reports_of(reports, Started), reports_of(reports, Ended)
    [verdict] = reports_of(reports, PreflightDone)
    nodes, devices = row.tested_at
    assert started.world_size == nodes * devices
    assert (ended.outcome, verdict.preparation.packing) == (Outcome.COMPLETED, PackingVerdict.PROVED)
    tolerance = 1e-4 if precision == "float32" else 0.05
    alone = expected(method, row.weights, quantization)
    assert losses_of(reports) == pytest.approx(alone, abs=tolerance)


def test_every_row_says_the_size_that_it_was_tested_at():
    for row in ROWS:
        nodes, devices = row.tested_at
        assert nodes in row.nodes
        assert devices in row.devices_per_node
        assert (row.sharding == "none") == (nodes * devices == 1)
