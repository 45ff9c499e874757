import pytest
from pydantic import ValidationError

from services.evaluator import settings as module
from services.evaluator.settings import Settings

NEEDED = {
    "kafka_bootstrap": "127.0.0.1:9092",
    "kafka_username": "evaluator",
    "kafka_password": "x",
    "postgres_dsn": "postgresql://evaluator@127.0.0.1/x",
    "http_port": 8000,
    "scratch_dir": "/tmp/scratch",
}
ONE, OTHER = "http://one/v1", "http://other/v1"


def test_a_stack_requires_that_harmless_prompts_are_answered():
    assert Settings(**NEEDED).required_checks == {"benchmark", "safety", "over_refusal"}


def test_the_only_judge_has_the_only_key():
    settings = Settings(**NEEDED, judge_urls=(ONE,), judge_api_key="secret")
    assert settings.judge_key(ONE) == "secret"


def test_a_key_without_a_name_goes_to_none_of_several_judges():
    for judges in (
        {"judge_urls": (ONE, OTHER)},
        {"judge_urls": (ONE,), "refusal_judge_url": OTHER, "refusal_judge_model": "m"},
    ):
        with pytest.raises(ValidationError, match="is for one judge, found 2"):
            Settings(**NEEDED, **judges, judge_api_key="secret")


def test_each_of_several_judges_has_its_own_key():
    settings = Settings(**NEEDED, judge_urls=(ONE, OTHER), judge_api_keys={ONE: "secret"})
    assert (settings.judge_key(ONE), settings.judge_key(OTHER)) == ("secret", None)


@pytest.mark.parametrize(
    ("changed", "gates"),
    [
        ({}, 1),
        ({"scoring_threads": 4}, 2),
        ({"scoring_threads": 3}, 2),
        ({"scoring_threads": 16}, 1),
        ({"scoring_threads": 1, "device": "cuda"}, 1),
        ({"scoring_threads": 1, "gates": 3}, 3),
        ({"gates": 3, "device": "cuda"}, 3),
    ],
)
def test_gates_share_the_cores_unless_the_operator_says_otherwise(changed, gates, monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    assert Settings(**NEEDED, **changed).gates_at_once == gates


@pytest.mark.parametrize(
    ("changed", "missing"), [({"device_name": "NVIDIA H200"}, "pool"), ({"pool": "h200"}, "device_name")]
)
def test_nodes_need_a_pool_and_the_product_that_numbers_are_of(changed, missing):
    with pytest.raises(ValidationError, match=f"{missing}: found nothing, expected a name"):
        Settings(**NEEDED, **changed, on_nodes=True)


def test_a_lease_has_a_node_only_where_the_operator_says_so():
    pool = {"pool": "h200", "device_name": "NVIDIA H200"}
    assert Settings(**NEEDED, **pool).leases.has_nodes is False
    assert Settings(**NEEDED, **pool, on_nodes=True).leases.has_nodes is True
