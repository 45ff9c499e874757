"""Commands that change something: with --dry-run they do all that comes before the change, and print it instead."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from cli.output import note, show
from schemas.base import Message
from schemas.topics import TOPICS

HELP = (
    "Look up and check all that can be without changing anything, print what would be sent, and send nothing."
)


class NotSent(Exception):
    """The command would go on with an answer that there is none of."""


class Planned:
    """One per run: what would be sent, with the line that names it; None without --dry-run."""

    changes: list[tuple[str, Mapping[str, Any]]] | None = None


def is_dry() -> bool:
    return Planned.changes is not None


def plan(line: str, **value: Any) -> None:
    """Note a change, in a dry run alone."""
    if Planned.changes is not None:
        Planned.changes.append((line, value))


def plan_last(line: str, **value: Any) -> None:
    """Note a change whose answer the command needs. Raises NotSent in a dry run."""
    plan(line, **value)
    if is_dry():
        raise NotSent


def plan_command(message: Message) -> None:
    """Note a command to Kafka, which its schema has checked. Raises NotSent in a dry run."""
    topic = next(topic.name for topic in TOPICS if type(message) in topic.messages)
    plan_last(
        f"{message.type} to {topic}", topic=topic, type=message.type, data=message.model_dump(mode="json")
    )


def _begin(value: bool) -> bool:
    Planned.changes = [] if value else None
    return value


_only = typer.Typer(add_completion=False)


@_only.command()
def _dry_run(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help=HELP, callback=_begin, expose_value=False)
    ] = False,
) -> None:
    """Holds the option that `Changes` gives to commands."""


class Changes(TyperCommand):
    """A command that has --dry-run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *get_command(_only).params]

    def invoke(self, ctx: Any) -> Any:
        if not is_dry():
            return super().invoke(ctx)
        try:
            super().invoke(ctx)
        except NotSent:
            _show(Planned.changes or [])
        else:
            note("there is nothing to change")
        finally:
            Planned.changes = None


def _show(changes: list[tuple[str, Mapping[str, Any]]]) -> None:
    values = [value for _, value in changes]
    text = "\n".join(f"{line}\n{_body(value)}".rstrip() for line, value in changes)
    show({"sent": False, "checked_by_platform": False, "changes": values}, text)
    note("nothing was sent, and the platform has not checked it: it may still refuse it")


def _body(value: Mapping[str, Any]) -> str:
    body = value.get("body", value.get("data"))
    return "" if body is None else json.dumps(body, indent=1, ensure_ascii=False)
