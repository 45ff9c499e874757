"""A model that needs several devices is scored on a lease of as many; Postgres and S3 are real."""

import json
from dataclasses import replace

import pytest

from services.evaluator.decide.nodes import subject_of
from tests.integration import test_scoring_nodes
from tests.integration.test_scoring_nodes import Material, PlayedNode, World, score

pytestmark = [pytest.mark.stack, pytest.mark.torch]

objects, folders = test_scoring_nodes.objects, test_scoring_nodes.folders
material, world = test_scoring_nodes.material, test_scoring_nodes.world


async def test_a_lease_is_of_as_many_devices_as_the_order_has(world: World, material: Material):
    """Not of one that a process before this one asked for when less was known of the pool."""
    spread = replace(material, order=material.order.model_copy(update={"num_devices": 2}))
    query = "INSERT INTO held_lease (subject, lease_id, state, devices) VALUES ($1, 'left', 'held', '[0]')"
    await world.conn.execute(query, subject_of(spread.evaluation.eval_id))
    world.node = PlayedNode(world, spread).play
    await score(world, spread)
    [lease_id] = world.nodes
    rows = await world.conn.fetch("SELECT type, value FROM outbox WHERE topic = 'lease.commands' ORDER BY id")
    commands = [(row["type"], json.loads(row["value"])) for row in rows]
    # Of other evaluations there may be some, and what has no answer yet is asked again.
    ours = dict.fromkeys(
        (kind, each["lease_id"], each.get("devices"))
        for kind, each in commands
        if each["lease_id"] in ("left", lease_id)
    )
    assert [*ours] == [
        ("ReturnDevices", "left", None),
        ("LeaseDevices", lease_id, 2),
        ("ReturnDevices", lease_id, None),
    ]
