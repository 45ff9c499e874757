"""The command line is public: nouns, commands and options are frozen here."""

import typer
from typer.core import TyperGroup
from typer.main import get_command

from cli.app import app

FROZEN = {
    "data": {
        "upload": "path purpose dry_run",
        "list": "purpose",
        "validate": "path model holdout dry_run",
        "report": "dataset_id",
        "excerpts": "dataset_id",
        "suites": "",
        "register-benchmark": "name path kind num_fewshot fewshot margin_points dry_run",
        "register-safety-suite": "name path benign dry_run",
    },
    "jobs": {
        "submit": "training_file model suffix validation_file holdout safety_mix options allow_ungated max_cost watch dry_run",
        "list": "limit",
        "show": "job_id",
        "watch": "job_id",
        "cancel": "job_id dry_run",
        "pause": "job_id dry_run",
        "resume": "job_id dry_run",
        "retry": "job_id from_checkpoint dry_run",
        "events": "job_id",
        "checkpoints": "job_id",
        "compare": "job_ids",
        "metrics": "job_id",
        "logs": "job_id attempt node follow",
    },
    "sweeps": {"create": "file dry_run", "list": "limit", "show": "sweep_id", "cancel": "sweep_id dry_run"},
    "alerts": {
        "": "job is_open limit",
        "mutes": "",
        "mute": "rule job until dry_run",
        "unmute": "rule job dry_run",
    },
    "costs": "by month all_tenants as_csv",
    "models": {
        "register-base": "name source training_template dry_run",
        "register-artifact": "job_id tenant dry_run",
        "register-checkpoint": "checkpoint dry_run",
        "list": "kind base_model",
        "show": "name",
        "lineage": "name",
        "evaluation": "name items suites log",
        "evaluate": "name watch dry_run",
        "promote": "name accept_without_holdout reason dry_run",
        "archive": "name dry_run",
        "exports": "name file_format quantization out dry_run",
        "delete-export": "name export_id dry_run",
    },
    "deployments": {
        "list": "",
        "history": "slot limit",
        "deploy": "model slot dry_run",
        "rollback": "slot dry_run",
        "remove": "slot dry_run",
    },
    "nodes": {
        "pools": "",
        "preempt": "node notice dry_run",
        "drain": "node grace dry_run",
        "set-capacity": "pool nodes dry_run",
        "list": "",
        "history": "pool machine limit",
        "cordon": "pool machine reason dry_run",
        "uncordon": "pool machine dry_run",
    },
    "webhooks": {
        "create": "url event name dry_run",
        "event-types": "",
        "list": "",
        "test": "endpoint event dry_run",
        "deliveries": "endpoint status",
        "replay": "endpoint delivery dry_run",
        "update": "endpoint url event name dry_run",
        "rotate": "endpoint end_old dry_run",
        "enable": "endpoint dry_run",
        "disable": "endpoint dry_run",
        "delete": "endpoint dry_run",
    },
    "events": {
        "tail": "topic from_start follow",
        "list": "type_ subject text limit",
        "show": "event_id",
        "timeline": "job_id",
    },
    "parked": {
        "list": "service",
        "show": "service parked_id",
        "replay": "service parked_id dry_run",
        "drop": "service parked_id reason dry_run",
    },
    "relay": {
        "republish": "service since topic dry_run",
        "set-aside": "service",
        "send": "service row_id dry_run",
        "drop": "service row_id reason dry_run",
    },
    "audit": {"verify": "topic since until"},
    "tenants": {
        "create": "name tier dry_run",
        "list": "",
        "keys": "name",
        "revoke-key": "name key dry_run",
        "revoke-keys": "name dry_run",
        "quotas": "name set_ dry_run",
        "add-user": "tenant name dry_run",
        "users": "tenant",
        "rotate-user": "tenant name dry_run",
        "remove-user": "tenant name dry_run",
    },
    "subscribers": {
        "create": "name topics tenant dry_run",
        "list": "",
        "rotate": "name dry_run",
        "remove": "name dry_run",
    },
    "up": "detach dry_run",
    "down": "dry_run",
    "status": "",
    "doctor": "deep grace stalled_after",
    "replay": "topic since until job to",
}


def surface(command) -> object:
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        own = " ".join(parameter.name for parameter in command.params if parameter.name != "help")
        without_command = {"": own} if command.invoke_without_command and command.name else {}
        return without_command | {
            name: surface(command.get_command(context, name)) for name in command.list_commands(context)
        }
    return " ".join(parameter.name for parameter in command.params if parameter.name != "help")


def test_nouns_commands_and_options_are_the_frozen_ones():
    assert surface(get_command(app)) == FROZEN
