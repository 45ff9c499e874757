"""Forty real trainings of a sweep: nodes that are taken back at random change no trial and not the best value."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx
import pytest

from schemas.node import NodePreempted
from shared.tls import client_context
from tests.chaos.scale import at_night, note, seed
from tests.e2e import material
from tests.e2e.conftest import BASE, Platform

pytestmark = [
    pytest.mark.stack,
    pytest.mark.torch,
    pytest.mark.timeout(3600),
    at_night("eighty trainings"),
]

NUM_TRIALS = 40
PREEMPT_EVERY_SECONDS = 12.0
"""A trial has its nodes for some ten seconds."""
OVER = {"succeeded", "failed", "cancelled"}
SEARCH: dict[str, Any] = {
    "algorithm": "tpe",
    "num_trials": NUM_TRIALS,
    "concurrency": 4,
    "seed": 7,
    "parameters": {
        "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
        "lora.rank": {"choices": [4, 8, 16]},
        "warmup_ratio": {"low": 0.0, "high": 0.3},
    },
}


async def sweep(platform: Platform, tenant: str) -> AsyncIterator[dict[str, Any]]:
    """Begin the sweep as this tenant, whose jobs of one configuration are no duplicates of another's. Yields it, each
    second, until it has ended.
    """
    key = json.loads(platform.retune("--json", "tenants", "create", tenant))["api_key"]
    verify = client_context(platform.stack.state.ca_file) or True
    url = platform.stack.operator_env()["RETUNE_BASE_URL"]
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, verify=verify, timeout=60) as http:

        async def upload(name: str, rows: list[dict[str, Any]]) -> str:
            path = material.write_jsonl(platform.folder / f"{name}-{tenant}.jsonl", rows)
            answer = await http.post(
                f"{url}/files", data={"purpose": "fine-tune"}, files={"file": (path.name, path.read_bytes())}
            )
            return str(answer.raise_for_status().json()["id"])

        rows = material.training_rows()
        recipe = {"num_epochs": 2, "batch_size": 2, "eval_every_steps": 10} | {
            "checkpoint": {"every_steps": 10, "every_seconds": 3600}
        }
        job = {
            "model": BASE,
            "training_file": await upload("sweep-train", rows[:250]),
            "validation_file": await upload("sweep-valid", rows[250:]),
            "retune": {"recipe": recipe, "policy": material.POLICY},
        }
        began = await http.post(f"{url}/sweeps", json={**SEARCH, "name": tenant, "job": job})
        assert began.status_code == 200, began.text
        while True:
            shown = (await http.get(f"{url}/sweeps/{began.json()['id']}")).raise_for_status().json()
            yield shown
            if shown["state"] in OVER:
                return
            await asyncio.sleep(1.0)


def results(shown: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (trial["number"], trial["state"], trial["parameters"], trial["valid_loss"])
        for trial in shown["trials"]
    ]


async def test_nodes_that_are_taken_back_change_no_trial_and_not_the_best(platform: Platform):
    chance, shown, struck_at, began = Random(seed()), {}, 0.0, time.monotonic()
    async for shown in sweep(platform, "struck"):
        running = [trial["job_id"] for trial in shown["trials"] if trial["state"] == "running"]
        if running and time.monotonic() - struck_at > PREEMPT_EVERY_SECONDS:
            await platform.preempt(chance.choice(running), notice_seconds=5)
            struck_at = time.monotonic()
    struck, struck_seconds, began = shown, time.monotonic() - began, time.monotonic()
    calm = [each async for each in sweep(platform, "calm")][-1]
    calm_seconds = time.monotonic() - began
    jobs = {trial["job_id"] for trial in struck["trials"]}
    taken = [
        each for each in await platform.events_of(tenant="struck") if isinstance(each.message, NodePreempted)
    ]
    preemptions = sum(each.message.job_id in jobs for each in taken)
    assert (struck["state"], calm["state"]) == ("succeeded", "succeeded")
    assert len(results(struck)) == NUM_TRIALS
    assert results(struck) == results(calm)
    assert struck["best"]["valid_loss"] == calm["best"]["valid_loss"]
    assert preemptions > NUM_TRIALS / 4
    note(
        "forty trials",
        trials=NUM_TRIALS,
        preemptions=preemptions,
        best_valid_loss=struck["best"]["valid_loss"],
        seconds=struck_seconds,
        seconds_without=calm_seconds,
    )
