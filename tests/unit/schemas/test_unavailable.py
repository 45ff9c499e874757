"""What other trainers have is refused by the name that their users type, with the nearest that works."""

import pytest
from pydantic import ValidationError

from schemas.specification import DatasetPolicy, Recipe, Resources, ShardingSpec
from schemas.unavailable import UNAVAILABLE
from services.gateway.errors import first_problem
from services.gateway.requests import CreateJob


def refusal(retune: dict) -> dict:
    body = {"model": "tiny", "training_file": "file-1", "retune": retune}
    with pytest.raises(ValidationError) as caught:
        CreateJob.model_validate(body)
    return first_problem(caught.value.errors()).body["error"]


@pytest.mark.parametrize(
    ("retune", "param"),
    [
        ({"recipe": {"tensor_parallel_size": 2}}, "retune.recipe.tensor_parallel_size"),
        ({"recipe": {"pipeline_parallel_size": 4}}, "retune.recipe.pipeline_parallel_size"),
        ({"recipe": {"sharding": {"tensor_parallel": 2}}}, "retune.recipe.sharding.tensor_parallel"),
        (
            {"recipe": {"sharding": {"library": "deepspeed", "zero_init": True}}},
            "retune.recipe.sharding.zero_init",
        ),
        ({"recipe": {"sharding": {"offload_param": True}}}, "retune.recipe.sharding.offload_param"),
        ({"resources": {"tp_size": 8}}, "retune.resources.tp_size"),
        ({"expert_parallel_size": 2}, "retune.expert_parallel_size"),
        (
            {"later_stages": [{"training_file": "file-2", "recipe": {"context_parallel_size": 2}}]},
            "retune.later_stages.0.recipe.context_parallel_size",
        ),
    ],
)
def test_other_ways_of_sharing_a_model_are_refused_by_name_with_the_nearest_that_works(retune, param):
    error = refusal(retune)
    assert (error["code"], error["param"]) == ("not_available_yet", param)
    name = param.rpartition(".")[2]
    what, nearest = UNAVAILABLE[name]
    assert f"{name} is " in error["message"]
    assert f"{what} is not available" in error["message"]
    assert error["message"].endswith(f"Nearest that works: {nearest}")


def test_what_is_refused_is_no_field_and_what_is_named_as_nearest_is_one():
    models = {
        "recipe": Recipe,
        "recipe.sharding": ShardingSpec,
        "resources": Resources,
        "policy": DatasetPolicy,
    }
    fields = {f"{path}.{name}" for path, model in models.items() for name in model.model_fields}
    assert not UNAVAILABLE.keys() & {field.rpartition(".")[2] for field in fields}
    named = {"recipe.sharding.library", "resources.devices_per_node", "policy.max_seq_length"}
    assert named <= fields
    assert all(any(field in nearest for field in named) for _, nearest in UNAVAILABLE.values())


def test_a_misspelt_field_is_refused_as_before():
    error = refusal({"recipe": {"batch_sise": 4}})
    assert (error["code"], error["param"]) == ("unknown_parameter", "retune.recipe.batch_sise")
