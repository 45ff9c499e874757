"""Checkpoint bundles in a store, as a job leaves them."""

import hashlib

from schemas import layout
from schemas.artifacts import BundleManifest, FileEntry
from schemas.base import BundleRef, DatasetRef
from schemas.gate import GateSpec
from schemas.job import JobEvaluating
from schemas.specification import Method
from shared.storage.objects import manifest_bytes


def entry(path, content):
    return FileEntry(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def part_key(content):
    return layout.checkpoint("ftjob-1", 1, 40, layout.part(hashlib.sha256(content).hexdigest()))


async def a_bundle(objects, files, *, kind="adapter", base_sha="b" * 64, **changes):
    """Store a bundle whose model is `files`; the artifact that names it."""
    parts = tuple(entry(f"model/{path}", content) for path, content in sorted(files.items()))
    manifest = BundleManifest(
        **{
            "job_id": "ftjob-1",
            "attempt": 1,
            "step": 40,
            "world_size": 1,
            "method": Method.LORA,
            "base_sha": base_sha,
            "dataset_version": "d" * 64,
            "config_hash": "e" * 64,
            "parts": (*parts, entry("state.json", b"{}")),
            **changes,
        }
    )
    for content in files.values():
        await objects.put_bytes(part_key(content), content)
    digest = await objects.put_bytes(layout.checkpoint("ftjob-1", 1, 40), manifest_bytes(manifest))
    return JobEvaluating(
        job_id="ftjob-1",
        tenant="acme",
        attempt=2,
        bundle=BundleRef(attempt=1, step=40, manifest_sha256=digest),
        dataset=DatasetRef(version="d" * 64, manifest_sha256="1" * 64),
        config_hash="e" * 64,
        base_model="tiny",
        base_sha=base_sha,
        template_sha256="f" * 64,
        kind=kind,
        rank=8 if kind == "adapter" else 0,
        full_name="ft:tiny:acme::",
        auto_deploy=True,
        holdout=None,
        gate=GateSpec(),
        benchmarks={},
        suites={},
    )
