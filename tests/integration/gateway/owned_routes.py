"""Routes to what a tenant owns, for the tests that keep tenants apart."""

import hashlib
from typing import Any

from schemas import layout
from schemas.exports import ExportedFile, ParityReport, Quantization, export_id
from schemas.model import ModelExported, ModelExportStarted
from tests.integration.gateway.world import World, mark
from tests.waiting import until

ENDPOINT = "/webhook_endpoints/{webhook_endpoint}"
OF_WEBHOOKS = [
    ("GET", ENDPOINT),
    ("POST", ENDPOINT),
    ("POST", f"{ENDPOINT}/rotate_secret"),
    ("POST", f"{ENDPOINT}/test"),
    ("GET", f"{ENDPOINT}/deliveries"),
    ("POST", f"{ENDPOINT}/deliveries/{{webhook_delivery}}/replay"),
    ("DELETE", ENDPOINT),
]
OF_A_JOB = [
    ("GET", "/fine_tuning/jobs/{job}"),
    ("POST", "/fine_tuning/jobs/{job}/cancel"),
    ("POST", "/fine_tuning/jobs/{job}/pause"),
    ("POST", "/fine_tuning/jobs/{job}/resume"),
    ("POST", "/fine_tuning/jobs/{job}/retry"),
    ("GET", "/fine_tuning/jobs/{job}/events"),
    ("GET", "/fine_tuning/jobs/{job}/events?stream=true"),
    ("GET", "/fine_tuning/jobs/{job}/checkpoints"),
    ("POST", "/fine_tuning/jobs/{job}/checkpoints/{checkpoint}/register"),
    ("GET", "/fine_tuning/jobs/{job}/logs"),
    ("GET", "/fine_tuning/jobs/{job}/metrics"),
    ("GET", "/fine-tuning/jobs/{job}"),
    ("POST", "/fine-tuning/jobs/{job}/cancel"),
]
ELSE = [
    ("GET", "/models/{model}"),
    ("GET", "/models/{model}/lineage"),
    ("GET", "/models/{model}/evaluation"),
    ("GET", "/models/{model}/evaluation/items"),
    ("GET", "/models/{model}/evaluation/log"),
    ("POST", "/models/{model}/deploy"),
    ("POST", "/models/{model}/evaluate"),
    ("POST", "/models/{model}/promote"),
    ("POST", "/models/{model}/archive"),
    ("POST", "/models/{model}/exports"),
    ("GET", "/models/{model}/exports"),
    ("GET", "/models/{model}/exports/{export}"),
    ("GET", "/models/{model}/exports/{export}/files/{export_file}"),
    ("DELETE", "/models/{model}/exports/{export}"),
    ("DELETE", "/models/{model}"),
    ("GET", "/models/{version}"),
    ("POST", "/models/{version}/deploy"),
    ("GET", "/deployments/{model}"),
    ("GET", "/deployments/{model}/history"),
    ("POST", "/deployments/{model}/rollback"),
    ("DELETE", "/deployments/{model}"),
    ("DELETE", "/alerts/mutes/{alert_mute}"),
    ("GET", "/datasets/{dataset}"),
    ("GET", "/datasets/{dataset}/report"),
    ("GET", "/datasets/{dataset}/excerpts"),
    ("DELETE", "/datasets/{dataset}"),
    ("GET", "/events/{event}"),
    ("GET", "/sweeps/{sweep}"),
    ("POST", "/sweeps/{sweep}/cancel"),
    ("GET", "/files/{file}"),
    ("GET", "/files/{file}/content"),
    ("DELETE", "/files/{file}"),
    ("POST", "/uploads/{upload}/parts"),
    ("POST", "/uploads/{upload}/complete"),
    ("POST", "/uploads/{upload}/cancel"),
    *OF_WEBHOOKS,
]
LISTS = [
    "/fine_tuning/jobs",
    "/fine_tuning/jobs?after={job}",
    "/fine_tuning/jobs?limit=100",
    "/files",
    "/files?after={file}",
    "/datasets",
    "/datasets?after={dataset}",
    "/models",
    "/deployments",
    "/webhook_endpoints",
    "/webhook_endpoints?after={webhook_endpoint}",
    "/alerts?limit=100",
    "/alerts/mutes",
    "/events?limit=100",
    "/events?after={event}",
    "/sweeps",
    "/sweeps?after={sweep}",
]


async def a_sweep(world: World) -> dict[str, str]:
    files = {name: (await world.upload())["id"] for name in ("training_file", "validation_file")}
    job = {"model": world.base_name, "retune": {"allow_ungated": True}} | files
    body = {"job": job, "parameters": {"lora.rank": {"choices": [8, 16]}}}
    answer = await world.ask("POST", "/sweeps", json=body)
    assert answer.status_code == 200, answer.text
    return {"sweep": answer.json()["id"]}


async def a_mute(world: World, job_id: str) -> dict[str, str]:
    """A mute of the job's alerts by a rule. Facts of a tenant are numbered: no file but one may say those of `demo`."""
    await world.db.execute(
        """INSERT INTO alert_mute (tenant, rule, job_id, muted_by, muted_at)
           VALUES ('demo', 'stall', $1, 'key_1 of tenant demo', now())""",
        job_id,
    )
    return {"alert_mute": f"stall:{job_id}"}


async def a_webhook(world: World) -> dict[str, str]:
    """An endpoint that is sent nothing, and a name as a delivery would have it."""
    body = {"name": "x", "url": "https://example.com/x", "event_types": ["retune.deployment.failed"]}
    endpoint = (await world.ask("POST", "/webhook_endpoints", json=body)).json()
    return {"webhook_endpoint": endpoint["id"], "webhook_delivery": f"whd_{mark()}"}


def of_export(version: Any, quantization: Quantization | None = None) -> dict[str, Any]:
    """Fields of every fact about an export of the version."""
    file_format = "gguf" if quantization else "safetensors"
    return version.model_dump(include={"model_id", "tenant", "job_id", "digest"}) | {
        "export_id": export_id(version.model_id, file_format, quantization),
        "format": file_format,
        "quantization": quantization,
    }


def parity(**changes: Any) -> ParityReport:
    fields: dict[str, Any] = {
        "num_tokens": 2_564,
        "max_difference": 0.0486,
        "mean_difference": 0.00576,
        "mean_kl": 0.001,
        "max_kl": 0.01,
        "training_kl": 0.1,
        "equal_next_tokens": 0.99,
        "kl_limit": 0.01,
        "equal_limit": 0.9,
        "passed": True,
    }
    return ParityReport(**fields | changes)


async def a_ready_export(world: World, version: Any, content: bytes = b"{}") -> str:
    """Say as the registry that an export is ready, whose file `config.json` lies in S3; return its id."""
    about, digest = of_export(version), hashlib.sha256(content).hexdigest()
    file = ExportedFile(path="config.json", size_bytes=len(content), sha256=digest)
    await world.objects.put_bytes(layout.export(about["export_id"], layout.part(digest)), content)
    ready = ModelExported(**about, files=(file,), size_bytes=len(content), parity=parity())
    await world.voices.say("registry", ModelExportStarted(**about, estimated_bytes=7), ready)

    async def is_shown() -> bool:
        path = f"/models/{version.model_id}/exports/{ready.export_id}"
        answer = await world.ask("GET", path, tenant=version.tenant)
        return answer.status_code == 200 and answer.json()["status"] == "ready"

    await until(is_shown, "the export to be shown")
    return ready.export_id
