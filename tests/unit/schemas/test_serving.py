"""The sets of schemas.serving are those of the vLLM that is installed. Its source is read, never imported."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from schemas.serving import NOT_SERVED, WITH_ADAPTERS, WITHOUT_ADAPTERS, is_served, is_served_with_adapters


def package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


MODELS = package("vllm") / "model_executor" / "models"


@cache
def buildable() -> frozenset[str]:
    """Causal language models of transformers."""
    source = (package("transformers") / "models" / "auto" / "modeling_auto.py").read_text()
    start = source.index("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")
    return frozenset(re.findall(r'", "(\w+)"\)', source[start : source.index("\n)\n", start)]))


def table(name: str) -> ast.Dict:
    for node in ast.parse((MODELS / "registry.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            assert isinstance(node.value, ast.Dict)
            return node.value
    raise AssertionError(f"vLLM has no {name}")


@cache
def bases() -> dict[str, frozenset[str]]:
    """Names of the base classes of each class among vLLM's models."""
    return {
        node.name: frozenset(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
        for path in MODELS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def takes_adapters(name: str) -> bool:
    return name == "SupportsLoRA" or any(takes_adapters(base) for base in bases().get(name, ()))


def test_the_sets_are_those_of_the_vllm_that_is_installed():
    served = {
        architecture: entry[1]
        for architecture, entry in ast.literal_eval(table("_TEXT_GENERATION_MODELS")).items()
        if architecture in buildable()
    }
    assert {name for name, served_by in served.items() if takes_adapters(served_by)} == WITH_ADAPTERS
    assert served.keys() - WITH_ADAPTERS == WITHOUT_ADAPTERS
    earlier = ast.literal_eval(table("_PREVIOUSLY_SUPPORTED_MODELS")).keys()
    assert earlier & buildable() == NOT_SERVED


def test_a_class_of_transformers_alone_is_served_where_its_attention_can_be_replaced():
    assert takes_adapters("TransformersForCausalLM")
    for is_one in (is_served, is_served_with_adapters):
        assert is_one("Olmo2ForCausalLM", takes_attention=True)
        assert not is_one("Olmo2ForCausalLM", takes_attention=False)
        assert not is_one("BambaForCausalLM", takes_attention=True)
    assert is_served("GPT2LMHeadModel", takes_attention=True)
    assert not is_served_with_adapters("GPT2LMHeadModel", takes_attention=True)
