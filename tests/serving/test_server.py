"""What the server of a replica changes in vLLM, in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.chaos.scale import at_night

LOOK = """
import subprocess
from services.serving_controller.clients import server
from vllm.model_executor.models.registry import ModelRegistry

def refuse(*arguments, **options):
    raise AssertionError(f"a process is started: {arguments}")

server.inspect_here()
subprocess.run = refuse
print(ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls().architecture)
"""


@pytest.mark.torch
@at_night("imports vLLM once more")
def test_on_a_cpu_a_models_class_is_looked_at_by_the_server_itself(tmp_path):
    """With nothing kept from another start."""
    env = os.environ | {"VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == ["LlamaForCausalLM"], done.stderr
