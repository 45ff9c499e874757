"""What the model says of every answer at step 0: the log-probabilities that preference optimisation compares with.

That model is the base, or what an earlier job trained and this one starts from. The log-probabilities are computed
once for a dataset version, before the first step, and stored beside it: later jobs and attempts read them. So one
model is in memory while it trains.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from schemas.artifacts import ReferenceIdentity
from schemas.base import FailureClass
from schemas.layout import REFERENCE
from services.trainer_agent.protocol import ReferenceComputed
from services.trainer_agent.training.bundle import sha256_of
from services.trainer_agent.training.dataset import Windows
from services.trainer_agent.training.failures import TrainingFailed
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.methods.preference import log_probabilities
from services.trainer_agent.training.network import build_network
from services.trainer_agent.training.plan import StepPlan, examples_of
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.sharding.fsdp2 import spread
from services.trainer_agent.training.snapshot import rng_state, set_rng_state
from services.trainer_agent.training.start import adapter_at_the_start, load_adapter, weights_dir
from services.trainer_agent.training.stop import StopRequest

log = logging.getLogger(__name__)

IDENTITY = "identity"
MICRO_BATCHES_AT_ONCE = 16
"""Number of micro batches of each rank from one look for a stop to the next."""

Reference = Mapping[str, NDArray[np.float32]]
"""Log-probabilities of `training` and `validation`, by the ids of the examples."""


class BadReference(Exception):
    """The file is not what this run needs."""


def give_reference(run: Run, stop: StopRequest) -> None:
    """Give every example what the model at step 0 says of its answer. All ranks call it at once.

    Raises: StopHeard; TrainingFailed(numeric) where a log-probability is not a finite number.
    """
    if not run.objective.has_reference:
        return
    path = run.order.reference
    reference = None if path is None else _read(path, run)
    sha256 = "" if path is None or reference is None else sha256_of(path)
    # A node may have fetched what others have not.
    digests = set(run.world.gathered(sha256))
    if reference is None or len(digests) > 1:
        reference = _computed(run, stop)
        if run.world.rank == 0:
            run.reports.send(_written(run, reference))
    for name, windows in _windows_of(run).items():
        windows.reference = reference[name]


def read_reference(path: Path, identity: ReferenceIdentity, lengths: Mapping[str, int]) -> Reference:
    """Read a reference. Raises: BadReference where the file is of something else, or not as long as the dataset."""
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(IDENTITY)
            reference = {name: file.get_tensor(name) for name in lengths}
    except (OSError, SafetensorError) as error:
        raise BadReference(f"it cannot be read: {error}") from error
    if _identity_in(text) != identity:
        raise BadReference(f"it is of {text}, expected {_text_of(identity)}")
    for name, length in lengths.items():
        array = reference[name]
        if (array.dtype, array.shape) != (np.float32, (length,)) or not np.isfinite(array).all():
            shape = f"{name} is {array.dtype} of shape {array.shape}"
            raise BadReference(f"{shape}, expected {length} finite numbers of float32")
    return reference


def write_reference(path: Path, identity: ReferenceIdentity, reference: Reference) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(reference), path, metadata={IDENTITY: _text_of(identity)})


def identity_of(run: Run) -> ReferenceIdentity:
    return ReferenceIdentity(
        base_sha=run.order.base_sha,
        started_from=run.order.started_from,
        dataset_version=run.order.dataset_version,
        template_sha256=run.dataset.manifest.template_sha256,
        weights=run.order.recipe.kind,
        precision="float32" if run.network.compute_dtype is torch.float32 else "bfloat16",
        quantized_sha256=run.quantized.sha256 if run.quantized else None,
    )


@contextmanager
def compared_on_the_base_at_hand(run: Run, indices: Sequence[int], stop: StopRequest) -> Iterator[None]:
    """Compare these windows of the validation file with the model at step 0 on the base as it computes now, not as it
    did when the reference was computed. All ranks enter at once."""
    validation = run.dataset.validation
    if not run.objective.has_reference:
        yield
        return
    _require_start(run)
    own = validation.reference
    run.network.eval()
    with torch.no_grad(), _adapter_at_the_start(run, run.network):
        validation.reference = _log_probabilities(run, run.network, "validation", indices, stop)
    try:
        yield
    finally:
        validation.reference = own


def _text_of(identity: ReferenceIdentity) -> str:
    return json.dumps(identity.model_dump(mode="json"), sort_keys=True)


def _identity_in(text: str | None) -> ReferenceIdentity | None:
    """Read an identity to be compared by fields, not as a text: an older file lacks what was always so before."""
    try:
        return ReferenceIdentity.model_validate_json(text or "")
    except ValidationError:
        return None


def _windows_of(run: Run) -> Mapping[str, Windows]:
    return {"training": run.dataset.training, "validation": run.dataset.validation}


def _read(path: Path, run: Run) -> Reference | None:
    lengths = {name: windows.num_examples for name, windows in _windows_of(run).items()}
    try:
        return read_reference(path, identity_of(run), lengths)
    except BadReference as error:
        log.warning("reference log-probabilities are computed again: %s", error)
        return None


def _written(run: Run, reference: Reference) -> ReferenceComputed:
    path = run.work_dir / "computed" / REFERENCE
    write_reference(path, identity_of(run), reference)
    return ReferenceComputed(
        path=path,
        identity=identity_of(run),
        size_bytes=path.stat().st_size,
        sha256=sha256_of(path),
    )


def _computed(run: Run, stop: StopRequest) -> Reference:
    _require_start(run)
    before = rng_state(run.device)
    network = _network_at_the_start(run)
    network.eval()
    try:
        with torch.no_grad(), _adapter_at_the_start(run, network):
            return {
                name: _log_probabilities(run, network, name, range(len(windows)), stop)
                for name, windows in _windows_of(run).items()
            }
    finally:
        network.train()
        set_rng_state(before, run.device)


def _require_start(run: Run) -> None:
    if run.order.started_from is not None and run.order.start_dir is None:
        message = (
            "log-probabilities at step 0 are needed, and the weights that training started from are not here"
        )
        raise TrainingFailed(FailureClass.INFRA, message)


def _network_at_the_start(run: Run) -> TokenLosses:
    """Return the run's own network where its base weights are as they were, as with an adapter; else a fresh one."""
    if run.order.recipe.kind == "adapter" or run.step == 0:
        return run.network
    log.warning("the first model is loaded beside the trained one, to compute reference log-probabilities")
    recipe = run.order.recipe
    network = build_network(recipe, weights_dir(run.order, None), run.device, in_rows=run.world.size > 1)
    spread(network, run.world, offload=recipe.sharded.offload_optimizer)
    return network


def _adapter_at_the_start(run: Run, network: TokenLosses) -> AbstractContextManager[Any]:
    """Let the adapter be the one that the order starts from, or none."""
    if run.order.recipe.kind == "full":
        return nullcontext()
    if (adapter := adapter_at_the_start(run.order)) is not None:
        return _started(run, adapter)
    without: AbstractContextManager[Any] = network.model.disable_adapter()
    return without


@contextmanager
def _started(run: Run, adapter: Path) -> Iterator[None]:
    trained = [(live, live.clone()) for _, live in run.sharding.read_by_passes()]
    load_adapter(adapter, run.trained, run.sharding.read_by_passes())
    try:
        yield
    finally:
        for live, own in trained:
            live.copy_(own)


def _log_probabilities(
    run: Run, network: TokenLosses, name: str, indices: Sequence[int], stop: StopRequest
) -> NDArray[np.float32]:
    """Return the log-probability of every example of these windows, by its id; each rank computes its share."""
    windows = _windows_of(run)[name]
    values = np.zeros(windows.num_examples)
    size = MICRO_BATCHES_AT_ONCE * run.order.recipe.micro_batch_size * run.world.size
    for start in range(0, len(indices), size):
        plan = StepPlan(tuple(windows[index] for index in indices[start : start + size]))
        for micro_batch in run.micro_batches(plan, stop):
            sums = log_probabilities(network, micro_batch, run.device).tolist()
            for example, value in zip(examples_of(micro_batch), sums, strict=True):
                values[example.id] = value
    totals = run.world.total(values.tolist())
    wrong = next((index for index, value in enumerate(totals) if not math.isfinite(value)), None)
    if wrong is not None:
        message = f"{name} example {wrong}: its log-probability at step 0 is {totals[wrong]}"
        raise TrainingFailed(FailureClass.NUMERIC, f"{message}, expected a finite number")
    return np.array(totals, np.float32)
