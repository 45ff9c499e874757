"""The command line is public: nouns, commands and options are frozen here."""

import typer
from typer.core import TyperGroup
from typer.main import get_command

from cli.app import app

FROZEN = {
    "data": {
        "upload": "path purpose",
        "list": "purpose",
        "validate": "path model holdout",
        "report": "dataset_id",
        "suites": "",
        "register-benchmark": "name path kind num_fewshot fewshot margin_points",
        "register-safety-suite": "name path benign",
    },
    "jobs": {
        "submit": "training_file model suffix validation_file holdout safety_mix options allow_ungated max_cost watch dry_run",
        "list": "",
        "show": "job_id",
        "watch": "job_id",
        "cancel": "job_id",
        "pause": "job_id",
        "resume": "job_id",
        "retry": "job_id from_checkpoint",
        "events": "job_id",
        "checkpoints": "job_id",
        "compare": "job_ids",
        "metrics": "job_id",
        "logs": "job_id attempt node follow",
    },
    "sweeps": {"create": "file dry_run", "list": "limit", "show": "sweep_id", "cancel": "sweep_id"},
    "alerts": "job is_open limit",
    "costs": "by month all_tenants as_csv",
    "models": {
        "register-base": "name source training_template",
        "register-artifact": "job_id tenant",
        "register-checkpoint": "checkpoint",
        "list": "kind base_model",
        "show": "name",
        "lineage": "name",
        "evaluation": "name items suites log",
        "evaluate": "name watch",
        "promote": "name accept_without_holdout reason",
        "archive": "name",
    },
    "deployments": {"list": "", "deploy": "model slot", "rollback": "slot", "remove": "slot"},
    "nodes": {
        "pools": "",
        "preempt": "node notice",
        "drain": "node grace",
        "set-capacity": "pool nodes",
        "list": "",
        "history": "pool machine limit",
        "cordon": "pool machine reason",
        "uncordon": "pool machine",
    },
    "webhooks": {
        "create": "url event name",
        "event-types": "",
        "list": "",
        "test": "endpoint event",
        "deliveries": "endpoint status",
        "replay": "endpoint delivery",
        "update": "endpoint url event name",
        "rotate": "endpoint end_old",
        "enable": "endpoint",
        "disable": "endpoint",
        "delete": "endpoint",
    },
    "events": {"tail": "topic from_start follow", "timeline": "job_id"},
    "parked": {
        "list": "service",
        "show": "service parked_id",
        "replay": "service parked_id",
        "drop": "service parked_id reason",
    },
    "relay": {
        "republish": "service since topic dry_run",
        "set-aside": "service",
        "send": "service row_id",
        "drop": "service row_id reason",
    },
    "audit": {"verify": "topic since until"},
    "tenants": {
        "create": "name tier",
        "list": "",
        "keys": "name",
        "revoke-key": "name key",
        "revoke-keys": "name",
        "quotas": "name set_",
        "add-user": "tenant name",
        "users": "tenant",
        "rotate-user": "tenant name",
        "remove-user": "tenant name",
    },
    "subscribers": {"create": "name topics tenant", "list": "", "rotate": "name", "remove": "name"},
    "up": "detach",
    "down": "",
    "status": "",
    "doctor": "deep grace stalled_after",
    "replay": "topic since until job to",
}


def surface(command) -> object:
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        return {name: surface(command.get_command(context, name)) for name in command.list_commands(context)}
    return " ".join(parameter.name for parameter in command.params if parameter.name != "help")


def test_nouns_commands_and_options_are_the_frozen_ones():
    assert surface(get_command(app)) == FROZEN
