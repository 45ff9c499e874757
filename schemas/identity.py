"""When two jobs are the same experiment. Pure."""

from collections.abc import Mapping
from typing import Any

from schemas.specification import JobSpec, Method, canonical_sha256, trains_either


def config_hash(spec: JobSpec, dataset_version: str, *, after: str | None = None) -> str:
    """Return sha256 over all that decides the trained weights; equal hashes are the same experiment.

    after: the hash of the stage before, in place of the weights that this one starts from.
    """
    # Elsewhere the method names its weights already, as it did before there was a choice.
    weights = {"weights": spec.recipe.kind} if trains_either(spec.recipe.method) else {}
    # Other methods have no preferences, and the hash that they had before there were any.
    dpo = {"dpo": spec.recipe.preferences.model_dump(mode="json")} if spec.recipe.method is Method.DPO else {}
    sharded = spec.recipe.sharded
    fields = sharded.model_dump(mode="json", exclude={"offload_optimizer_auto"})
    sharding = {"sharding": fields} if sharded.library == "deepspeed" else {}
    # Only where there is one, so that the hashes of other jobs are what they were.
    started_from = after or (spec.start_from.identity if spec.start_from else None)
    start = {"start_from": started_from} if started_from else {}
    # On which numbers of nodes its attempts come to run is not known before: the least is of the experiment.
    least = spec.resources.min_nodes
    elastic = {"min_nodes": least} if least is not None else {}
    identity = {
        "base_sha": spec.base_sha,
        "dataset_version": dataset_version,
        "recipe": _without_later_defaults(spec.recipe.model_dump(mode="json", exclude=APART))
        | weights
        | dpo
        | sharding,
        "world_size": spec.resources.num_devices,
    }
    return canonical_sha256(identity | start | elastic)


APART = {"weights", "dpo", "sharding", "micro_batch_size_auto"}
"""Fields of a recipe that are hashed apart or not at all. How the sum of a step's gradients is divided, as the device
decides, makes no other experiment."""
LATER_DEFAULTS: Mapping[str, object] = {
    "quantization": None,
    "schedule": "cosine",
    "decay_ratio": None,
    "optimizer": "adamw",
    "eval_every_steps": None,
    "early_stopping": None,
    "load_best_model_at_end": False,
}
LATER_DEFAULTS_OF_LORA: Mapping[str, object] = {"use_rslora": False, "use_dora": False, "modules_to_save": []}
"""Fields that came after the first hashes. Where they say what was so before, they change none."""


def _without_later_defaults(recipe: Mapping[str, Any]) -> dict[str, Any]:
    lora = _without(LATER_DEFAULTS_OF_LORA, recipe["lora"])
    return _without(LATER_DEFAULTS, recipe) | {"lora": lora}


def _without(defaults: Mapping[str, object], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: value for k, value in fields.items() if k not in defaults or value != defaults[k]}
