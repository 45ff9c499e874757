"""OpenAI's objects, made from rows of the read models. Ours is under `retune`."""

from collections.abc import Callable
from datetime import datetime
from operator import itemgetter
from typing import Any

from schemas.training import BundleMetrics
from services.gateway import memory
from services.gateway.decide import STATUS_OF_PHASE, VERDICTS, Ending, stage_of_suite
from services.gateway.readmodels import METRICS

Row = Any
Shape = dict[str, Any]


def unix(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def page(items: list[Shape], *, has_more: bool, key: Callable[[Shape], str] = itemgetter("id")) -> Shape:
    first, last = (key(items[0]), key(items[-1])) if items else (None, None)
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
    """`fine_tuned_model` names the version, passed or not: see docs/decisions/0020-what-a-blocked-job-shows.md."""
    spec, ending = row["spec"], _ending(row)
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
        "result_files": row["result_files"],
        "trained_tokens": row["trained_tokens"],
        "seed": recipe.get("seed", 0),
        "hyperparameters": dials,
        "method": {"type": "supervised", "supervised": {"hyperparameters": dials}},
        "integrations": [],
        "metadata": spec.get("metadata") or {},
        "error": row["error"]
        or {"code": ending.problem, "message": _why_unusable(row, ending), "param": None},
        "retune": _job_extensions(row, recipe) | {"gate": _gate(row, ending), "is_usable": ending.is_usable},
    }


def _progress(row: Row) -> Shape | None:
    """How far what goes on now is; None where nothing goes on that counts."""
    if row["phase"] == "evaluating":
        return _eval_progress((row["evaluation"] or {}).get("progress"))
    if row["phase"] not in ("running", "checkpointing") or not row["num_steps"]:
        return None
    done = {"done": row["last_step"] or 0, "total": row["num_steps"], "unit": "steps"}
    return {"stage": "training", "part": "", "side": None, **done, "seconds_left": None}


def _eval_progress(progress: Shape | None) -> Shape | None:
    if progress is None:
        return None
    counted = {"done": progress["items_done"], "total": progress["items_total"], "unit": "items"}
    where = {"stage": progress["stage"], "part": progress["suite"], "side": progress["side"]}
    return where | counted | {"seconds_left": progress["seconds_left"]}


def _ending(row: Row) -> Ending:
    return Ending(
        phase=row["phase"],
        has_model=row["model_id"] is not None,
        is_promoted=row["is_promoted"],
        is_deployed=row["is_deployed"],
        auto_deploy=row["spec"].get("auto_deploy", True),
        verdict=row["evaluation"] and row["evaluation"]["outcome"],
    )


def _why_unusable(row: Row, ending: Ending) -> str | None:
    if ending.problem is None:
        return None
    reason = (row["evaluation"] or {}).get("reason", "")
    return row["ending"] or reason or "its model was not promoted"


def _gate(row: Row, ending: Ending) -> Shape:
    """The newest verdict. `failing_checks`: the numbers that missed their rule, as in the evaluation's stages."""
    verdict = row["evaluation"] or {"eval_id": None, "reason": "", "stages": []}
    is_over = ending.gate in VERDICTS
    return {
        "status": ending.gate,
        "reason": verdict["reason"] if is_over else _why_no_verdict(row, ending),
        "eval_id": verdict["eval_id"],
        "failing_checks": [
            {"stage": stage["stage"], **check}
            for stage in verdict["stages"]
            for check in stage["checks"]
            if not check["passed"]
        ],
    }


def _why_no_verdict(row: Row, ending: Ending) -> str:
    if ending.gate == "not_asked":
        return row["ending"] or f"the job {row['phase']} before its gate"
    return "the gate is running" if ending.verdict == "running" else "the gate runs after training"


def _queue(place: Shape) -> Shape:
    estimate = place["estimated_start"]
    return {
        "position": place["position"],
        "reason": place["reason"],
        "estimated_start": unix(datetime.fromisoformat(estimate)) if estimate else None,
        "as_of": unix(datetime.fromisoformat(place["as_of"])),
    }


def _job_extensions(row: Row, recipe: Shape) -> Shape:
    place = row["place"] if row["phase"] == "queued" else None
    return {
        "phase": row["phase"],
        "attempt": row["attempt"],
        "waiting_for": place["waiting_for"] if place else row["waiting_for"],
        "queue": place and _queue(place),
        "warnings": row["warnings"],
        "num_steps": row["num_steps"],
        "last_step": row["last_step"],
        "progress": _progress(row),
        "dataset_id": row["dataset_id"],
        "dataset_version": row["dataset_version"],
        "config_hash": row["config_hash"],
        "duplicate_of": row["duplicate_of"],
        "retry_of": row["retry_of"],
        "model_id": row["model_id"],
        "is_deployed": row["is_deployed"],
        "estimated_memory": row["estimated_memory"],
        "preparation": row["preparation"],
        "resume_certificate": row["certificate"],
        "cost_usd": str(row["cost"]),
        "uncharged_cost_usd": str(row["uncharged_cost"]),
        "has_holdout": row["spec"].get("holdout") is not None,
        "recipe": recipe,
    }


def job_event(row: Row) -> Shape:
    return {
        "id": f"ftevent-{row['id']}",
        "object": "fine_tuning.job.event",
        "created_at": unix(row["created_at"]),
        "level": row["level"],
        "message": row["message"],
        "type": "metrics" if row["type"] == METRICS else "message",
        "data": row["data"] | {"type": row["type"], "event_id": row["event_id"]},
    }


def checkpoint(row: Row) -> Shape:
    name = f"ftckpt-{row['job_id']}-{row['attempt']}-{row['step']}"
    return {
        "id": name,
        "object": "fine_tuning.job.checkpoint",
        "created_at": unix(row["created_at"]),
        "fine_tuning_job_id": row["job_id"],
        "fine_tuned_model_checkpoint": name,
        "step_number": row["step"],
        "metrics": {"step": row["step"], **BundleMetrics.model_validate(row["metrics"]).model_dump()},
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
        "retune": {"kind": "base", **base_facts(row["base_sha"], row["detail"])},
    }


def base_facts(base_sha: str, detail: Shape) -> Shape:
    """`memory`: what a device needs by estimate, by method; None where the model's shape was not looked at."""
    base = memory.Base.of(detail)
    return {"base_sha": base_sha, **detail, "memory": base and memory.of_base(base)}


def id_of_model(model: Shape) -> str:
    """What names it alone: two versions with the same weights have one name."""
    version: str = model["retune"].get("model_id", model["id"])
    return version


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
            **_approval(row),
        },
    }


def _approval(row: Row) -> Shape:
    """`has_holdout`: whether it was held against rows of its own task; None before it passed."""
    columns = ("has_holdout", "approved_by", "approval_reason", "accepted_without_holdout")
    return {name: row[name] for name in columns}


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
            for key in (
                *("config_hash", "template_sha256", "training_template_sha256"),
                *("bundle", "kind", "rank"),
            )
        },
        **_approval(row),
        "evaluation": evaluation
        and {name: evaluation[name] for name in ("eval_id", "outcome", "reason", "evidence")},
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
        "number": row["number"],
        "evidence": row["evidence"],
        "progress": _eval_progress(row["progress"]),
    }


def suite(row: Row) -> Shape:
    """What every gate asks; its items are nobody's to read."""
    return {
        "id": row["name"],
        "object": "suite",
        "name": row["name"],
        "stage": stage_of_suite(row["is_benchmark"], row["detail"]),
        "rows": row["rows"],
        "digest": row["digest"],
        "registered_at": unix(row["registered_at"]),
        "retune": row["detail"],
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


def kafka_user(row: Any) -> dict[str, Any]:
    return {
        "id": row["name"],
        "object": "kafka_user",
        "username": row["name"],
        "tenant": row["tenant"],
        "reads": list(row["reads"]),
        "writes": list(row["writes"]),
        "group_prefix": row["group_prefix"],
        "changed_at": unix(row["changed_at"]),
    }
