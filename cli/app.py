"""The `retune` command. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 unreachable."""

import logging
import subprocess
import sys
from typing import Annotated

import typer

from cli.changes import Changes, plan_last
from cli.commands.context import connection
from cli.nouns import Nouns
from cli.output import Output, note
from ops.errors import RefusedByPlatform, Unreachable

REFUSED, UNREACHABLE = 1, 3

app = typer.Typer(
    cls=Nouns,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Results as JSON on stdout.")] = False,
) -> None:
    """Fine-tune, gate and serve models on your own machines. Alone: where you are, and what to do next."""
    Output.as_json = json
    if context.invoked_subcommand is None:
        from cli.commands.overview import show_overview  # commands are imported when one of them is called

        show_overview()


@app.command(cls=Changes)
def up(detach: Annotated[bool, typer.Option(help="Return when everything is healthy.")] = True) -> None:
    """Start the local stack."""
    _local("up", *(["--detach"] if detach else []))


@app.command(cls=Changes)
def down() -> None:
    """Stop the local stack."""
    _local("down")


@app.command()
def status() -> None:
    """Show what of the local stack runs."""
    _local("status")


def _local(*arguments: str) -> None:
    plan_last(f"python -m deploy.local {' '.join(arguments)}", arguments=arguments)
    raise typer.Exit(subprocess.call([sys.executable, "-m", "deploy.local", *arguments]))


def main() -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say, the last line says
    try:
        app()
    except RefusedByPlatform as error:
        note(str(error))
        sys.exit(REFUSED)
    except Unreachable as error:
        note(str(error))
        sys.exit(UNREACHABLE)
    except Exception as error:
        from shared.messaging.kafka import KafkaFailed  # slow to import

        if not isinstance(error, KafkaFailed):
            raise
        note(
            f"Kafka at {connection().kafka.bootstrap} does not serve us ({error}); is the stack up? `retune status`"
        )
        sys.exit(UNREACHABLE)


if __name__ == "__main__":
    main()
