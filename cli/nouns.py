"""The nouns of the command line, whose commands are imported when one of them is called."""

from importlib import import_module
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

NOUNS = {
    "data": "cli.commands.data",
    "jobs": "cli.commands.jobs",
    "sweeps": "cli.commands.sweeps",
    "alerts": "cli.commands.alerts",
    "costs": "cli.commands.costs",
    "models": "cli.commands.models",
    "deployments": "cli.commands.deployments",
    "webhooks": "cli.commands.webhooks",
    "nodes": "cli.commands.nodes",
    "events": "cli.commands.events",
    "parked": "cli.commands.parked",
    "relay": "cli.commands.relay",
    "audit": "cli.commands.audit",
    "tenants": "cli.commands.tenants",
    "subscribers": "cli.commands.subscribers",
    "doctor": "cli.commands.doctor",
    "replay": "cli.commands.replay",
}
"""Modules, each with a Typer `app`. Most need neither Kafka nor S3, whose clients take a second to import."""


class Nouns(TyperGroup):
    """A group whose commands are the nouns and those that are added to it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*NOUNS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in NOUNS:
            return super().get_command(ctx, cmd_name)
        command = get_command(import_module(NOUNS[cmd_name]).app)
        command.name = cmd_name
        return command
