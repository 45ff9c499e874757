"""Exports on the real stack: asked for and downloaded over HTTP, from a trained bundle to files that others load."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from deploy.local.stack import Stack
from schemas import layout
from schemas.artifacts import ExportManifest
from schemas.model import DirectorySource, ModelExportFailed, RegisterBaseModel
from tests.chaos.scale import at_night
from tests.integration.gateway.world import new_key
from tests.integration.kills import alive, killed_at
from tests.integration.registry_world import ENV, World, objects, world
from tests.training.merges import RANK, build_base, write_trained
from tests.waiting import until

__all__ = ["objects", "world"]

pytestmark = [pytest.mark.stack, pytest.mark.torch]

GATEWAY_ENV = {"GATEWAY_COMMAND_WAIT_SECONDS": "10"}
NAME = "exported-llama"


@dataclass
class Exporting:
    """A gateway and a registry, a base model that can be loaded, and versions of it."""

    stack: Stack
    world: World
    base: Any
    base_dir: Path
    http: httpx.AsyncClient
    keys: dict[str, str] = field(default_factory=dict)

    async def a_version(self, seed: int) -> Any:
        write = partial(write_trained, base=self.base_dir, seed=seed)
        job = await self.world.train(base=self.base, rank=RANK, write=write)
        version = await self.world.registered(job)
        await until(partial(self.is_shown, version), "the gateway to know the version")
        return version

    async def is_shown(self, version: Any) -> bool:
        return (await self.ask("GET", f"/models/{version.model_id}")).status_code == 200

    def adapter_of(self, version: Any) -> Path:
        return self.world.root / version.job_id

    async def ask(self, method: str, path: str, *, tenant: str = "demo", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"} | options.pop("headers", {})
        return await self.http.request(method, f"/v1{path}", headers=headers, **options)

    async def begin(self, version: Any, **body: Any) -> dict[str, Any]:
        answer = await self.ask("POST", f"/models/{version.model_id}/exports", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ended(self, version: Any, export: dict[str, Any]) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            shown = (await self.ask("GET", f"/models/{version.model_id}/exports/{export['id']}")).json()
            return None if shown["status"] == "running" else shown

        return await until(look, f"the end of {export['id']}")

    async def download(self, version: Any, export: dict[str, Any], into: Path) -> Path:
        into.mkdir()
        for file in export["files"]:
            path = f"/models/{version.model_id}/exports/{export['id']}/files/{file['path']}"
            answer = await self.ask("GET", path)
            assert answer.status_code == 200
            assert hashlib.sha256(answer.content).hexdigest() == file["sha256"]
            (into / file["path"]).write_bytes(answer.content)
        return into


@pytest.fixture(scope="module")
async def exporting(stack: Stack, world: World, tmp_path_factory) -> AsyncIterator[Exporting]:
    base_dir = build_base(tmp_path_factory.mktemp("exports") / "base", "Llama")
    command = RegisterBaseModel(name=NAME, source=DirectorySource(path=str(base_dir)))
    base = await world.answer("admin", command, NAME)
    assert base.type == "BaseModelRegistered", base
    await alive(stack, "gateway", env=GATEWAY_ENV)
    async with httpx.AsyncClient(base_url=stack.url("gateway"), timeout=60.0) as http:
        exporting = Exporting(stack, world, base, base_dir, http)
        exporting.keys["demo"] = stack.operator_env()["RETUNE_API_KEY"]
        db = await asyncpg.connect(stack.postgres_dsn("gateway"))
        exporting.keys["other"] = await new_key(SimpleNamespace(db=db), "exports-other")
        await db.close()
        yield exporting
    await stack.stop("gateway")


async def test_a_version_becomes_a_folder_that_answers_as_its_adapter(exporting, tmp_path):
    version = await exporting.a_version(1)
    export = await exporting.begin(version, format="safetensors")
    assert (export["status"], export["files"]) == ("running", [])
    assert export["bytes"] > 32 * 1024**2
    again = await exporting.begin(version, format="safetensors")
    assert again["id"] == export["id"]
    ready = await exporting.ended(version, export)
    assert ready["status"] == "ready", ready["error"]
    assert ready["parity"]["passed"]
    assert ready["parity"]["num_tokens"] > 1_000
    assert ready["bytes"] == sum(file["size_bytes"] for file in ready["files"])
    assert await exporting.begin(version, format="safetensors") == ready
    listed = (await exporting.ask("GET", f"/models/{version.full_name}/exports")).json()["data"]
    assert listed == [ready]

    folder = await exporting.download(version, ready, tmp_path / "folder")
    asked = AutoTokenizer.from_pretrained(folder)("def times_7(x): return", return_tensors="pt")
    base = AutoModelForCausalLM.from_pretrained(exporting.base_dir, dtype=torch.float32)
    trained = PeftModel.from_pretrained(base, exporting.adapter_of(version))
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = [each.generate(**asked, max_new_tokens=10, do_sample=False) for each in (trained, merged)]
    assert torch.equal(*answers)

    types = exporting.world.ear.types(version.model_id)
    assert [name for name in types if name not in ("ModelRegistered", "ModelExportProgressed")] == [
        "ModelExportStarted",
        "ModelExported",
    ]
    await ranges(exporting, version, ready)
    await others(exporting, version, ready)
    await deleted(exporting, version, ready)


async def ranges(exporting: Exporting, version: Any, export: dict[str, Any]) -> None:
    file = next(file for file in export["files"] if file["path"] == "model.safetensors")
    path = f"/models/{version.model_id}/exports/{export['id']}/files/{file['path']}"
    whole = (await exporting.ask("GET", path)).content
    size = len(whole)
    for header, part in (
        ("bytes=0-99", whole[:100]),
        (f"bytes={size - 5}-", whole[-5:]),
        ("bytes=-7", whole[-7:]),
        (f"bytes=10-{size + 50}", whole[10:]),
    ):
        answer = await exporting.ask("GET", path, headers={"range": header})
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["content-range"].endswith(f"/{size}")
    behind = await exporting.ask("GET", path, headers={"range": f"bytes={size}-"})
    assert (behind.status_code, behind.json()["error"]["code"]) == (416, "invalid_range")
    changed = await exporting.ask("GET", path, headers={"range": "bytes=0-9", "if-range": '"older"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, f'"{file["sha256"]}"')
    assert (await exporting.ask("GET", f"{path}.old")).status_code == 404


async def others(exporting: Exporting, version: Any, export: dict[str, Any]) -> None:
    """Another tenant finds nothing of it."""
    path = f"/models/{version.model_id}/exports"
    for method, where in (
        ("GET", path),
        ("POST", path),
        ("GET", f"{path}/{export['id']}"),
        ("DELETE", f"{path}/{export['id']}"),
        ("GET", f"{path}/{export['id']}/files/config.json"),
    ):
        options = {"json": {"format": "safetensors"}} if method == "POST" else {}
        assert (await exporting.ask(method, where, tenant="other", **options)).status_code == 404


async def deleted(exporting: Exporting, version: Any, export: dict[str, Any]) -> None:
    usage = (await exporting.ask("GET", "/quotas")).json()["used"]["stored_bytes"]
    path = f"/models/{version.model_id}/exports/{export['id']}"
    assert (await exporting.ask("DELETE", path)).json()["deleted"]
    assert (await exporting.ask("GET", path)).status_code == 404
    assert (await exporting.ask("GET", "/quotas")).json()["used"]["stored_bytes"] == usage - export["bytes"]

    async def is_empty() -> bool:
        return not await exporting.world.objects.list_objects(layout.exports(export["id"]))

    await until(is_empty, "the files to be deleted")


async def test_what_there_is_no_memory_for_is_refused_before_any_work(exporting):
    version = await exporting.a_version(2)
    await exporting.stack.stop("registry")
    await alive(exporting.stack, "registry", env=ENV | {"REGISTRY_EXPORT_MEMORY_BYTES": str(1024**3)})
    failed = await exporting.ended(version, await exporting.begin(version, format="safetensors"))
    assert failed["error"]["code"] == "no_room"
    assert "the registry's machine has 1.0 GiB" in failed["error"]["message"]
    assert failed["bytes"] == 0
    await exporting.stack.stop("registry")
    await alive(exporting.stack, "registry", env=ENV)


async def test_a_damaged_copy_of_the_model_is_not_exported(exporting):
    version = await exporting.a_version(3)
    store = exporting.world.objects
    key = layout.model(version.digest, layout.file("adapter_model.safetensors"))
    content = await store.get_bytes(key)
    await store.delete([key])
    await store.put_bytes(key, content[:-1] + bytes([content[-1] ^ 1]))
    failed = await exporting.ended(version, await exporting.begin(version, format="safetensors"))
    assert failed["error"]["code"] == "damaged_model"
    assert "adapter_model.safetensors" in failed["error"]["message"]
    fact = exporting.world.ear.last(version.model_id)
    assert isinstance(fact, ModelExportFailed)
    assert fact.parity is None


@at_night("each change has the merged folder")
@pytest.mark.parametrize("quantization", ["f16", "q8_0"])
async def test_a_gguf_file_is_downloaded_and_read(exporting, tmp_path, quantization):
    version = await exporting.a_version(4)
    export = await exporting.begin(version, format="gguf", quantization=quantization)
    ready = await exporting.ended(version, export)
    assert (ready["status"], [file["path"] for file in ready["files"]]) == ("ready", ["model.gguf"]), ready
    folder = await exporting.download(version, ready, tmp_path / "folder")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(exporting.base_dir)
    asked = tokenizer("def times_7(x): return", return_tensors="pt")
    assert model(**asked).logits.isfinite().all()


@at_night("a kill in the middle, and a try of it again")
@pytest.mark.crash_matrix
@pytest.mark.parametrize("failpoint", ["registry.export.worked", "s3.part.sent", "s3.manifest.after"])
async def test_an_export_goes_on_after_a_kill(exporting, tmp_path, failpoint):
    version = await exporting.a_version(5 + len(failpoint))
    async with killed_at(exporting.stack, "registry", failpoint, env=ENV):
        export = await exporting.begin(version, format="safetensors")
    await alive(exporting.stack, "registry", env=ENV)
    ready = await exporting.ended(version, export)
    assert ready["status"] == "ready", ready["error"]
    await exporting.download(version, ready, tmp_path / "folder")
    manifest = ExportManifest.model_validate_json(
        await exporting.world.objects.get_bytes(layout.export(export["id"]))
    )
    assert [file.model_dump() for file in manifest.files] == ready["files"]


@at_night("a download that is damaged")
async def test_a_damaged_file_of_an_export_ends_before_its_last_bytes(exporting):
    version = await exporting.a_version(6)
    ready = await exporting.ended(version, await exporting.begin(version, format="safetensors"))
    file = next(file for file in ready["files"] if file["path"] == "config.json")
    store = exporting.world.objects
    key = layout.export(ready["id"], layout.part(file["sha256"]))
    content = await store.get_bytes(key)
    await store.delete([key])
    await store.put_bytes(key, content.replace(b"{", b"["))
    path = f"/models/{version.model_id}/exports/{ready['id']}/files/config.json"
    with pytest.raises(httpx.RemoteProtocolError):
        await exporting.ask("GET", path)
