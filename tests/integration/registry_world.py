"""The registry as a process, who speaks to it, and bundles, base models and verdicts for it."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import pytest
from safetensors.numpy import save_file

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry, files_digest
from schemas.base import BundleRef, DatasetRef
from schemas.deployment import DeploymentReady
from schemas.evaluation import CheckResult, Criterion, EvalFailed, EvalPassed
from schemas.gate import GateSpec
from schemas.job import JobEvaluating
from schemas.model import DirectorySource, PromoteModel, RegisterBaseModel
from schemas.specification import Method
from services.registry.model import model_id
from shared.storage.objects import manifest_bytes, sha256_of
from shared.storage.s3 import S3ObjectStore
from tests.integration.voices import Ear, Voices, ear, voices
from tests.waiting import until

MODULE = "model.layers.0.self_attn.q_proj"
LAYER = "model.layers.0"
LLAMA_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 32,
    "max_position_embeddings": 512,
}
LLAMA_SHAPES = {
    "model.embed_tokens.weight": (32, 16),
    **{f"{LAYER}.self_attn.{name}_proj.weight": (8, 16) for name in "qkv"},
    f"{LAYER}.self_attn.o_proj.weight": (16, 8),
    **{f"{LAYER}.mlp.{name}_proj.weight": (24, 16) for name in ("gate", "up")},
    f"{LAYER}.mlp.down_proj.weight": (16, 24),
    f"{LAYER}.input_layernorm.weight": (16,),
    f"{LAYER}.post_attention_layernorm.weight": (16,),
    "model.norm.weight": (16,),
    "lm_head.weight": (32, 16),
}
"""Of the smallest Llama that transformers builds."""
ENV = {"REGISTRY_COPY_ATTEMPTS": "2"}
numbers = itertools.count(1)
Write = Callable[[Path], object]


class World:
    def __init__(self, voices: Voices, ear: Ear, objects: S3ObjectStore, root: Path) -> None:
        self.voices = voices
        self.ear = ear
        self.objects = objects
        self.root = root
        self.base_name = "tiny"
        self.base_sha = ""

    async def register_base(
        self, name: str, *, marker: str = "", training_template: str | None = None, **more: bytes
    ) -> Any:
        """The answer to RegisterBaseModel; `marker` makes other files of it."""
        directory = a_base_directory(self.root / f"base-{next(numbers)}", marker=marker, more=more)
        command = RegisterBaseModel(
            name=name,
            source=DirectorySource(path=str(directory)),
            training_template=training_template,
        )
        return await self.answer("admin", command, name)

    async def train(
        self, *, base: Any = None, rank: int = 4, write: Write | None = None, **changes: Any
    ) -> JobEvaluating:
        """A bundle in S3 and the fact that names it, not said yet. write: writes the adapter's folder."""
        number = next(numbers)
        job_id = f"ftjob-r{number}"
        directory = self.root / job_id
        (write or partial(write_adapter, seed=number, rank=rank))(directory)
        parts = tuple(entry(path, f"model/{path.name}") for path in sorted(directory.iterdir()))
        base_sha = base.base_sha if base else self.base_sha
        manifest = BundleManifest(
            job_id=job_id,
            attempt=1,
            step=40,
            world_size=1,
            method=Method.LORA,
            base_sha=base_sha,
            dataset_version="d" * 64,
            config_hash="e" * 64,
            parts=parts,
        )
        for part in parts:
            path = directory / part.path.removeprefix("model/")
            key = layout.checkpoint(job_id, 1, 40, layout.part(part.sha256))
            await self.objects.put_file(key, path, sha256=part.sha256)
        digest = await self.objects.put_bytes(layout.checkpoint(job_id, 1, 40), manifest_bytes(manifest))
        fields: dict[str, Any] = {
            "job_id": job_id,
            "tenant": "demo",
            "attempt": 1,
            "bundle": BundleRef(attempt=1, step=40, manifest_sha256=digest),
            "dataset": DatasetRef(version="d" * 64, manifest_sha256="1" * 64),
            "config_hash": "e" * 64,
            "base_model": base.name if base else self.base_name,
            "base_sha": base_sha,
            "template_sha256": "f" * 64,
            "kind": "adapter",
            "rank": rank,
            "full_name": "ft:tiny:demo:r:",
            "auto_deploy": True,
            "holdout": None,
            "gate": GateSpec(),
            "benchmarks": {},
            "suites": {},
        }
        return JobEvaluating(**fields | changes)

    async def as_checkpoint_of(
        self, job: JobEvaluating, weights_of: JobEvaluating, *, step: int
    ) -> BundleRef:
        """Another checkpoint of the job, with what that one has trained."""
        parts = []
        for path in sorted((self.root / weights_of.job_id).iterdir()):
            part = entry(path, f"model/{path.name}")
            key = layout.checkpoint(job.job_id, 1, step, layout.part(part.sha256))
            await self.objects.put_file(key, path, sha256=part.sha256)
            parts.append(part)
        own = await self.objects.get_bytes(layout.checkpoint(job.job_id, 1, job.bundle.step))
        manifest = BundleManifest.model_validate_json(own)
        manifest = manifest.model_copy(update={"step": step, "parts": tuple(parts)})
        digest = await self.objects.put_bytes(
            layout.checkpoint(job.job_id, 1, step), manifest_bytes(manifest)
        )
        return BundleRef(attempt=1, step=step, manifest_sha256=digest)

    async def registered(self, job: JobEvaluating) -> Any:
        await self.voices.say("scheduler", job)
        digest = self.digest(job)
        return await self.ear.until(model_id(job.job_id, digest), "ModelRegistered")

    def digest(self, job: JobEvaluating) -> str:
        return files_digest(
            tuple(entry(path, path.name) for path in sorted((self.root / job.job_id).iterdir()))
        )

    async def gated(self, job: JobEvaluating, *, production: bool = False, tenant: str = "demo") -> Any:
        """A registered version that passed the gate."""
        version = await self.registered(job)
        await self.voices.say("evaluator", passed(version))
        await self.ear.until(version.model_id, "ModelRegistered", "ModelPromoted")
        if production:
            command = PromoteModel(model_id=version.model_id, tenant=tenant, approved_by="ann")
            await self.voices.say("gateway", command)
            await self.ear.until(version.model_id, "ModelRegistered", "ModelPromoted", "ModelPromoted")
        return version

    async def serve(self, slot: str, version: Any, generation: int) -> None:
        """Say as the serving controller that the generation is ready."""
        fields = answer_fields(slot, version, generation)
        await self.voices.say(
            "serving_controller",
            DeploymentReady(**fields, served_name=f"{version.full_name}@{version.digest}", replicas=()),
        )

    async def answer(self, writer: str, command: Any, key: str) -> Any:
        """The next fact of this story after the command."""
        heard = len(self.ear.heard[key])
        await self.voices.say(writer, command)
        await until(lambda: len(self.ear.heard[key]) > heard, f"an answer to {command}")
        return self.ear.heard[key][heard].message


async def is_ready(db: asyncpg.Connection, slot: str, generation: int) -> bool:
    query = "SELECT outcome = 'ready' FROM slot_generation WHERE slot = $1 AND number = $2"
    return bool(await db.fetchval(query, slot, generation))


def answer_fields(slot: str, version: Any, generation: int) -> dict[str, Any]:
    return {
        "pool": "serve-x",
        "base_sha": version.base_sha,
        "slot": slot,
        "tenant": "demo",
        "digest": version.digest,
        "generation": generation,
        "model_id": version.model_id,
    }


def entry(path: Path, name: str) -> FileEntry:
    return FileEntry(path=name, size_bytes=path.stat().st_size, sha256=sha256_of(path))


def a_base_directory(directory: Path, *, marker: str, more: dict[str, bytes]) -> Path:
    directory.mkdir()
    tensors = {name: np.zeros(shape, np.float32) for name, shape in LLAMA_SHAPES.items()}
    save_file(tensors, directory / "model.safetensors")
    config = LLAMA_CONFIG | {"marker": marker}
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }
    for name, content in (
        files | {name.replace("__", "."): content for name, content in more.items()}
    ).items():
        (directory / name).write_bytes(content)
    return directory


def write_adapter(directory: Path, *, seed: int, rank: int) -> None:
    directory.mkdir()
    random = np.random.default_rng(seed)
    tensors = {
        f"base_model.model.{MODULE}.lora_A.weight": random.standard_normal((rank, 16), dtype=np.float32),
        f"base_model.model.{MODULE}.lora_B.weight": random.standard_normal((8, rank), dtype=np.float32),
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def passed(version: Any, *, checks: tuple[Any, ...] = ("holdout", "safety")) -> EvalPassed:
    """With a holdout, unless `checks` are given."""
    return EvalPassed(
        **_verdict_of(version),
        checks=tuple(CheckResult(check=check, outcome="passed") for check in checks),
    )


def failed(version: Any) -> EvalFailed:
    criterion = Criterion(
        name="harmful", metric="refusals", value=0.12, baseline=0.98, threshold=0.95, count=200, passed=False
    )
    check = CheckResult(check="safety", outcome="failed", criteria=(criterion,))
    return EvalFailed(**_verdict_of(version), checks=(check,), reason="safety")


def _verdict_of(version: Any) -> dict[str, Any]:
    return {
        "eval_id": f"eval-{version.job_id}-{next(numbers)}",
        "tenant": "demo",
        "job_id": version.job_id,
        "model_id": version.model_id,
        "digest": version.digest,
        "base_sha": version.base_sha,
    }


@pytest.fixture(scope="module")
async def objects(stack: Stack) -> S3ObjectStore:
    key = stack.s3_credentials("root")
    return S3ObjectStore(stack.s3_endpoint, key.access_key, key.secret_key, bucket=stack.s3_bucket)


@pytest.fixture(scope="module")
async def world(
    stack: Stack, objects: S3ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    await stack.start("registry", env=ENV)
    await stack.wait_healthy("registry")
    async with voices(stack) as speaking, ear(stack, "model.events") as heard:
        world = World(speaking, heard, objects, tmp_path_factory.mktemp("registry"))
        world.base_sha = (await world.register_base("tiny")).base_sha
        yield world
    await stack.stop("registry")


@pytest.fixture
async def db(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn("registry"))
    yield conn
    await conn.close()
