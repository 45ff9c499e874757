"""How weights, gradients and moments are spread over the processes of a run. All else is one loop for all."""

from schemas.specification import Recipe
from services.trainer_agent.training.distributed import World
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.sharding.fsdp2 import Fsdp2
from services.trainer_agent.training.sharding.interface import Sharding
from services.trainer_agent.training.sharding.zero import zero


def shard(network: TokenLosses, recipe: Recipe, world: World, *, by_node: bool = False) -> Sharding:
    """Move the network from host memory to its devices, as the recipe says. `by_node`, for FSDP2 alone: each node has
    all, spread over its own devices."""
    if recipe.sharded.library == "deepspeed":
        return zero(network, recipe, world)
    return Fsdp2(network, recipe, world, by_node=by_node)


def reads_when_sharded(recipe: Recipe, world: World) -> bool:
    """Return whether the base has no values before it is sharded, and no process ever has all of it. With ZeRO 1 and
    2 each has all weights, and 4 bits are made of whole matrices."""
    return world.size > 1 and recipe.sharded.zero_stage in (None, 3) and not recipe.is_quantized
