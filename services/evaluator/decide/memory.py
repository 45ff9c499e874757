"""How many devices of one machine a model is scored on, estimated from its shape. Pure.

Layers are spread over the devices, each whole on one of them, so that numbers are those of one device.
"""

from math import ceil

from schemas.artifacts import BaseModelManifest
from schemas.capabilities import BaseCapabilities
from schemas.memory import FIXED_BYTES, VALUE_BYTES, Shape
from services.evaluator.model import Pool
from services.evaluator.scoring.order import LOGITS_PER_BATCH, LOGITS_PER_CHUNK, Limits

USED_SHARE = 0.9
"""Share of a device's memory that may be needed: the allocator of a GPU cannot use all of it."""
FORWARD_HIDDEN = 8
"""Values of the hidden size that a forward pass has at once for each token: residual, norm, queries, keys, values,
what attention returns, and copies of two."""
FORWARD_INNER = 3
"""Values of the inner size that it has at once for each token: both projections and their product."""


def devices_for(base: BaseModelManifest, limits: Limits, pool: Pool | None, *, rank: int) -> int:
    """Return the least number of devices of one machine whose memory has room for their shares of the model.

    rank: of the candidate's adapter; 0: it is a full model. One where the pool does not say what its devices have, or
    the base model was registered without its shape; a whole machine where that has no room either.
    """
    if pool is None or pool.device_memory_bytes is None or base.capabilities is None:
        return 1
    usable = USED_SHARE * pool.device_memory_bytes
    shape = Shape.of(base.capabilities, num_parameters=base.num_parameters)
    numbers = range(1, pool.devices_per_node)
    fitting = (
        num for num in numbers if device_bytes(shape, base.capabilities, limits, num, rank=rank) <= usable
    )
    return next(fitting, pool.devices_per_node)


def device_bytes(shape: Shape, base: BaseCapabilities, limits: Limits, num_devices: int, *, rank: int) -> int:
    """Return the bytes that the fullest of so many devices needs."""
    width = 2 if limits.dtype == "bfloat16" else 4
    table = shape.vocab_size * shape.hidden_size
    in_layers = shape.num_parameters - shape.num_tables * table
    cached = base.cache_values_per_token * limits.batch_tokens
    adapter = VALUE_BYTES * rank * shape.lora_values_per_rank
    of_layers = width * (in_layers + cached) + adapter
    layers = max(1, shape.num_layers)
    # Head and input table are on the last and the first device.
    tables = shape.num_tables if num_devices == 1 else 1
    share = of_layers * ceil(layers / num_devices) // layers + width * tables * table
    return share + _forward_bytes(shape, limits, width) + FIXED_BYTES


def _forward_bytes(shape: Shape, limits: Limits, width: int) -> int:
    """Return the bytes of what comes and goes within a layer, and of the logits of a batch."""
    values = FORWARD_HIDDEN * shape.hidden_size + FORWARD_INNER * shape.inner_size
    mask = limits.max_tokens
    logits = width * LOGITS_PER_BATCH + 3 * VALUE_BYTES * LOGITS_PER_CHUNK
    return width * limits.forward_tokens * (values + mask) + logits
