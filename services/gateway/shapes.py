"""OpenAI's objects, made from rows of the read models. Ours is under `retune`."""

from datetime import datetime
from typing import Any

from services.gateway.decide import STATUS_OF_PHASE

Row = Any
Shape = dict[str, Any]


def unix(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def page(items: list[Shape], *, has_more: bool) -> Shape:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "has_more": has_more, "first_id": first, "last_id": last}


def file(row: Row) -> Shape:
    return {
        "id": row["file_id"],
        "object": "file",
        "bytes": row["size_bytes"],
        "created_at": unix(row["created_at"]),
        "filename": row["filename"],
        "purpose": row["purpose"],
        "status": "processed",
        "expires_at": None,
        "retune": {"sha256": row["sha256"], "format": row["format"]},
    }


def deleted_file(file_id: str, state: str, needed_by: list[str]) -> Shape:
    answer: Shape = {"id": file_id, "object": "file", "deleted": state == "deleted"}
    if state == "deleted":
        return answer
    return answer | {"retune": {"status": "deleting", "needed_by": needed_by}}


def job(row: Row) -> Shape:
    spec = row["spec"]
    recipe = spec.get("recipe", {})
    dials = {
        "n_epochs": recipe.get("num_epochs", "auto"),
        "batch_size": recipe.get("batch_size", "auto"),
        "learning_rate_multiplier": recipe.get("learning_rate_multiplier", 1.0),
    }
    return {
        "id": row["job_id"],
        "object": "fine_tuning.job",
        "created_at": unix(row["created_at"]),
        "finished_at": unix(row["finished_at"]),
        "estimated_finish": None,
        "model": spec.get("base_model"),
        "fine_tuned_model": row["fine_tuned_model"] if row["phase"] == "succeeded" else None,
        "organization_id": row["tenant"],
        "status": STATUS_OF_PHASE[row["phase"]],
        "training_file": (spec.get("training_file") or {}).get("file_id"),
        "validation_file": (spec.get("validation_file") or {}).get("file_id"),
        "result_files": [],
        "trained_tokens": row["trained_tokens"],
        "seed": recipe.get("seed", 0),
        "hyperparameters": dials,
        "method": {"type": "supervised", "supervised": {"hyperparameters": dials}},
        "integrations": [],
        "metadata": spec.get("metadata") or {},
        "error": row["error"] or {"code": None, "message": None, "param": None},
        "retune": _job_extensions(row, recipe),
    }


def _job_extensions(row: Row, recipe: Shape) -> Shape:
    return {
        "phase": row["phase"],
        "attempt": row["attempt"],
        "waiting_for": row["waiting_for"],
        "num_steps": row["num_steps"],
        "last_step": row["last_step"],
        "dataset_id": row["dataset_id"],
        "dataset_version": row["dataset_version"],
        "config_hash": row["config_hash"],
        "duplicate_of": row["duplicate_of"],
        "retry_of": row["retry_of"],
        "model_id": row["model_id"],
        "is_deployed": row["is_deployed"],
        "resume_certificate": row["certificate"],
        "cost_usd": str(row["cost"]),
        "uncharged_cost_usd": str(row["uncharged_cost"]),
        "recipe": recipe,
    }


def job_event(row: Row) -> Shape:
    return {
        "id": f"ftevent-{row['id']}",
        "object": "fine_tuning.job.event",
        "created_at": unix(row["created_at"]),
        "level": row["level"],
        "message": row["message"],
        "type": "message",
        "data": row["data"] | {"type": row["type"], "event_id": row["event_id"]},
    }


def checkpoint(row: Row) -> Shape:
    name = f"ftckpt-{row['job_id']}-{row['attempt']}-{row['step']}"
    metrics = {"step": row["step"], "train_loss": row["metrics"].get("loss")}
    return {
        "id": name,
        "object": "fine_tuning.job.checkpoint",
        "created_at": unix(row["created_at"]),
        "fine_tuning_job_id": row["job_id"],
        "fine_tuned_model_checkpoint": name,
        "step_number": row["step"],
        "metrics": metrics
        | {key: value for key, value in row["metrics"].items() if key.startswith("valid_")},
        "retune": {
            "attempt": row["attempt"],
            "kind": row["kind"],
            "state": row["state"],
            "manifest_sha256": row["manifest_sha256"],
        },
    }


def base_model(row: Row) -> Shape:
    return {
        "id": row["name"],
        "object": "model",
        "created": unix(row["registered_at"]),
        "owned_by": "retune",
        "retune": {"kind": "base", "base_sha": row["base_sha"], **row["detail"]},
    }


def fine_tuned_model(row: Row) -> Shape:
    return {
        "id": row["full_name"],
        "object": "model",
        "created": unix(row["created_at"]),
        "owned_by": row["tenant"],
        "root": row["base_model"],
        "parent": row["base_model"],
        "retune": {
            "kind": "fine-tuned",
            "model_id": row["model_id"],
            "stage": row["stage"],
            "digest": row["digest"],
            "job_id": row["job_id"],
            "is_stale": row["is_stale"],
        },
    }


def lineage(row: Row, evaluation: Row | None) -> Shape:
    return {
        "object": "model.lineage",
        "model": row["full_name"],
        "model_id": row["model_id"],
        "digest": row["digest"],
        "stage": row["stage"],
        "base_model": row["base_model"],
        "base_sha": row["base_sha"],
        "dataset_version": row["dataset_version"],
        "job_id": row["job_id"],
        "eval_id": row["eval_id"],
        **{
            key: row["detail"].get(key)
            for key in ("config_hash", "template_sha256", "bundle", "kind", "rank")
        },
        "evaluation": evaluation and {"outcome": evaluation["outcome"], "reason": evaluation["reason"]},
    }


def evaluation(row: Row) -> Shape:
    return {
        "id": row["eval_id"],
        "object": "evaluation",
        "created_at": unix(row["created_at"]),
        "job_id": row["job_id"],
        "model_id": row["model_id"],
        "outcome": row["outcome"],
        "reason": row["reason"],
        "stages": row["stages"],
    }


def deployment(row: Row) -> Shape:
    return {
        "id": row["slot"],
        "object": "model.deployment",
        "slot": row["slot"],
        "model_id": row["model_id"],
        "digest": row["digest"],
        "generation": row["generation"],
        "status": row["state"],
        "reason": row["reason"],
        "served_name": row["served_name"],
        "replicas": [replica["replica_id"] for replica in row["replicas"]],
        "updated_at": unix(row["updated_at"]),
    }


def refusal(row: Row) -> Shape:
    return {
        "id": f"refusal-{row['id']}",
        "object": "command.refusal",
        "created_at": unix(row["refused_at"]),
        "command": row["command"],
        "command_id": row["command_id"],
        "subject_id": row["subject_id"],
        "code": row["code"],
        "message": row["message"],
        "param": row["param"],
    }


def dataset(row: Row) -> Shape:
    return {
        "id": row["dataset_id"],
        "object": "dataset",
        "created_at": unix(row["created_at"]),
        "status": row["state"],
        "version": row["dataset_version"],
        **row["detail"],
    }
