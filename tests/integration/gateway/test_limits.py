"""What a request may be: no larger than what follows from it can be, and text that can be stored."""

import json

import pytest

from tests.integration.gateway.world import World

pytestmark = pytest.mark.stack


async def test_a_job_that_is_too_large_for_its_readers_is_refused_where_it_is_asked_for(world: World):
    file_id = (await world.upload())["id"]
    recipe = {"lora": {"target_modules": ["m" * 400] * 200}}
    body = {"model": world.base_name, "training_file": file_id, "retune": {"recipe": recipe}}
    answer = await world.ask("POST", "/fine_tuning/jobs", json=body)
    assert answer.status_code == 413
    assert "expected at most 65536" in answer.json()["error"]["message"]


@pytest.mark.parametrize("changes", [{"metadata": {"k": "\ud800"}}, {"metadata": {"\ud800": "v"}}])
async def test_half_a_surrogate_pair_is_no_text(world: World, changes):
    body = {"model": world.base_name, "training_file": (await world.upload())["id"]} | changes
    answer = await world.ask("POST", "/fine_tuning/jobs", content=json.dumps(body))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
