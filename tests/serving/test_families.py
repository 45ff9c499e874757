"""Real vLLM serves each family that is trained with adapters as transformers and PEFT compute it."""

import pytest

from schemas.specification import Method
from services.registry.clients.mirror import describe
from services.registry.decide.capabilities import capabilities
from services.registry.inspection.networks import inspect
from services.serving_controller.clients.probe import PROMPTS
from services.serving_controller.decide.pools import adapter_layers
from tests.chaos.scale import scaled
from tests.families import FAMILIES, build_family
from tests.serving.conftest import CLOSE, far_from_the_reference, rig_of

pytestmark = [pytest.mark.any_device, pytest.mark.torch]

SERVED = scaled(("gpt-oss",), ("GPT-2", "Gemma 2", "gpt-oss"), tuple(FAMILIES))
"""At night those that are started in a way of their own each, for a start takes long."""


@pytest.mark.parametrize("family", SERVED)
async def test_a_family_answers_with_an_adapter_and_without(family, device, tmp_path):
    base_dir = build_family(tmp_path / "base", family)
    known = capabilities(inspect(base_dir), describe(base_dir, "tiny", "directory")[1])
    layers = adapter_layers(known)
    async with rig_of(tmp_path, base_dir, device) as rig:
        adapters = [] if Method.LORA in known.refused_methods else [await rig.an_adapter(1)]
        replica = await rig.converge(rig.replica_set(*adapters, layers=layers))
        client = rig.client(replica)
        base = await client.answer(replica.served_base, PROMPTS[0])
        assert far_from_the_reference(base, base_dir, None) < CLOSE
        for adapter in adapters:
            answer = await client.answer(adapter.served_name, PROMPTS[0])
            assert far_from_the_reference(answer, base_dir, rig.scratch / "adapter-1") < CLOSE
            assert answer.distance(base) > 0.01
