"""What is known at submit: refused where nothing later can help, warned of elsewhere, silent where nothing is known."""

from dataclasses import replace

import pytest

from schemas.node import PoolCapacityChanged
from schemas.specification import Method, Resources
from services.gateway.decide import refuse_final
from services.gateway.memory import Base
from services.gateway.obstacles import Known, Policy, obstacles, suited_pools
from shared.errors import Refused
from tests.builders import a_file_ref, a_job_spec, capabilities

JUDGE = {"url": "http://judge.test/v1", "model": "judge"}
POLICY = Policy(frozenset({"benchmark", "safety"}), frozenset({JUDGE["url"]}))
ALL = frozenset({"benchmark", "safety"})


def a_pool(name: str = "cpu-spot", **changes: object) -> PoolCapacityChanged:
    fields = {"capacity_type": "spot", "nodes": 4, "free": 4, "devices_per_node": 1, "price_per_hour": "0.1"}
    return PoolCapacityChanged(**{"pool": name} | fields | changes)


def a_spec(**changes: object):
    base = a_job_spec(training_file=a_file_ref())
    return type(base).model_validate(base.model_dump() | changes)


def a_base(**changes: object) -> Base:
    return Base(capabilities(**changes), num_parameters=1_000_000, context_tokens=512)


def obstacle_summaries(known: Known, **changes: object) -> list[tuple[str, str, bool]]:
    return [(each.code, each.param, each.is_final) for each in obstacles(a_spec(**changes), known)]


HOLDOUT = a_file_ref().model_dump()


def test_no_job_is_refused_for_want_of_news():
    assert obstacle_summaries(Known()) == []
    assert (
        obstacle_summaries(
            Known(), resources={"pool": "x", "nodes": 64}, gate={"judge": JUDGE}, holdout=HOLDOUT
        )
        == []
    )


def test_a_job_with_all_that_the_gate_needs_has_no_obstacle():
    known = Known(POLICY, ALL, (a_pool(),), holdout_rows=200)
    assert obstacle_summaries(known, holdout=HOLDOUT, gate={"judge": JUDGE}) == []


@pytest.mark.parametrize("check", ["benchmark", "safety"])
def test_a_required_check_without_a_suite_is_final_unless_asked_otherwise(check):
    known = Known(POLICY, ALL - {check})
    assert obstacle_summaries(known) == [("gate_cannot_pass", "allow_ungated", True)]
    assert obstacle_summaries(known, allow_ungated=True) == [("gate_cannot_pass", "allow_ungated", False)]
    (obstacle,) = obstacles(a_spec(), known)
    assert f"check {check}" in obstacle.message
    assert "`retune data register-" in obstacle.message


def test_a_required_check_that_the_job_must_name_says_so():
    known = Known(Policy(frozenset({"holdout", "judge"}), frozenset({JUDGE["url"]})))
    assert [each.message.split("check ")[1].split()[0] for each in obstacles(a_spec(), known)] == [
        "holdout",
        "judge",
    ]
    assert obstacle_summaries(known, holdout=HOLDOUT, gate={"judge": JUDGE}) == []


@pytest.mark.parametrize(
    ("changes", "known", "expected"),
    [
        ({"gate": {"judge": JUDGE}}, Known(), ("holdout_missing", "holdout", True)),
        ({"gate": {"holdout": {"metric": "perplexity"}}}, Known(), ("holdout_missing", "holdout", True)),
        ({"holdout": HOLDOUT}, Known(holdout_rows=20), ("holdout_too_small", "holdout", True)),
        (
            {"holdout": HOLDOUT, "gate": {"holdout": {"min_items": 500}}},
            Known(holdout_rows=499),
            ("holdout_too_small", "holdout", True),
        ),
        (
            {"holdout": HOLDOUT, "gate": {"judge": JUDGE}},
            Known(Policy(frozenset(), frozenset())),
            ("judge_not_allowed", "gate.judge.url", True),
        ),
        ({"resources": {"pool": "gpu"}}, Known(pools=(a_pool(),)), ("unknown_pool", "resources.pool", True)),
        (
            {"resources": {"devices_per_node": 2}},
            Known(pools=(a_pool(),)),
            ("no_pool_holds", "resources", True),
        ),
        (
            {"resources": {"capacity_type": "on-demand"}},
            Known(pools=(a_pool(),)),
            ("no_pool_holds", "resources", True),
        ),
        (
            {"resources": {"pool": "a", "devices_per_node": 8}},
            Known(pools=(a_pool("a"), a_pool("b", devices_per_node=8))),
            ("no_pool_holds", "resources", True),
        ),
        (
            {"resources": {"device": "cuda"}},
            Known(pools=(a_pool(device="cpu"),)),
            ("no_pool_holds", "resources", True),
        ),
        (
            {"resources": {"accelerators": ["H100"], "device_memory_gib": 80}},
            Known(pools=(a_pool(device="cuda", accelerator="H100", device_memory_bytes=2**30),)),
            ("no_pool_holds", "resources", True),
        ),
        (
            {"resources": {"nodes": 5}},
            Known(pools=(a_pool(), a_pool("small", nodes=0))),
            ("no_pool_holds", "resources.nodes", False),
        ),
    ],
)
def test_each_obstacle_names_its_field_and_whether_it_can_go_away(changes, known, expected):
    assert obstacle_summaries(known, **changes) == [expected]


def test_an_elastic_job_needs_a_pool_for_its_least_alone():
    known = Known(pools=(a_pool(max_devices_per_job=2),))
    assert obstacle_summaries(known, resources={"min_nodes": 2, "nodes": 9}) == []
    assert suited_pools(Resources(min_nodes=2, nodes=9), known.pools) == known.pools
    assert obstacle_summaries(known, resources={"min_nodes": 3, "nodes": 9}) == [
        ("no_pool_holds", "resources", True)
    ]


@pytest.mark.parametrize("rows", [None, 500])
def test_a_holdout_that_is_large_enough_or_was_never_counted_is_none(rows):
    assert obstacle_summaries(Known(holdout_rows=rows), holdout=HOLDOUT) == []


def test_a_job_that_names_nothing_is_compared_with_pools_of_gpus_where_there_are_any():
    pools = (a_pool(device="cpu", devices_per_node=8), a_pool("gpu", device="cuda"))
    (obstacle,) = obstacles(a_spec(resources={"devices_per_node": 2}), Known(pools=pools))
    assert obstacle.message == (
        "resources: 2 devices of one node (spot-first, cuda) do not fit into any pool (cpu-spot, gpu)"
    )


def test_spot_first_takes_on_demand_too():
    assert obstacle_summaries(Known(pools=(a_pool(capacity_type="on-demand"),))) == []


def test_a_request_is_refused_by_the_name_of_its_own_parameter():
    with pytest.raises(Refused, match="40 rows") as caught:
        refuse_final(obstacles(a_spec(holdout=HOLDOUT), Known(holdout_rows=40)))
    assert caught.value.param == "retune.holdout_file"
    other = replace(obstacles(a_spec(holdout=HOLDOUT), Known(holdout_rows=40))[0], param="suffix")
    with pytest.raises(Refused) as caught:
        refuse_final([other])
    assert caught.value.param == "retune.suffix"
    refuse_final(obstacles(a_spec(resources={"nodes": 9}), Known(pools=(a_pool(),))))


def test_what_the_base_model_cannot_be_trained_with_is_final():
    known = Known(base=a_base(refused_methods={Method.LORA: "vLLM serves it without adapters"}))
    assert obstacle_summaries(known) == [("method_not_for_base", "recipe.method", True)]
    (obstacle,) = obstacles(a_spec(), known)
    assert "Nearest that works: method sft" in obstacle.message
    assert obstacle_summaries(known, recipe={"method": "sft"}) == []


def test_layers_that_the_base_model_does_not_have_are_final():
    known = Known(base=a_base())
    assert obstacle_summaries(known, recipe={"lora": {"target_modules": ["self_attn.q_proj"]}}) == []
    lora = {"lora": {"target_modules": ["q_proj", "experts"]}}
    assert obstacle_summaries(known, recipe=lora) == [
        ("unknown_lora_targets", "recipe.lora.target_modules", True)
    ]
    (obstacle,) = obstacles(a_spec(recipe=lora), known)
    assert "no plain linear layers named experts" in obstacle.message
    assert "some of k_proj, q_proj" in obstacle.message
