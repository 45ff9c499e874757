"""retune subscribers: internal teams that read topics."""

from typing import Annotated

import typer

from cli.changes import Changes
from cli.commands import kafka_users
from cli.commands.context import admin_api
from cli.output import show
from schemas.access import subscriber_user

app = typer.Typer(
    add_completion=False, help="Internal teams that read lifecycle topics.", no_args_is_help=True
)

Topics = Annotated[
    str, typer.Option(help="Lifecycle topics of all tenants, with commas: job.events,model.events")
]
Tenants = Annotated[
    list[str] | None, typer.Option("--tenant", help="Read the events of this tenant; repeatable.")
]


@app.command(cls=Changes)
def create(name: str, topics: Topics = "", tenant: Tenants = None) -> None:
    """Create a login to Kafka that reads these topics and writes nothing. The password is shown only now."""
    names = [topic.strip() for topic in topics.split(",") if topic.strip()]
    body = {"name": name, "topics": names, "tenants": tenant or []}
    user = admin_api().post("/admin/subscribers", body)
    show(user, kafka_users.login_text(user))


@app.command("list")
def list_() -> None:
    """Who reads what."""
    kafka_users.show_users(lambda user: user["tenant"] is None)


@app.command(cls=Changes)
def rotate(name: str) -> None:
    """Another password; the old one opens no further connection."""
    kafka_users.rotate(subscriber_user(name))


@app.command(cls=Changes)
def remove(name: str) -> None:
    """Take the login and its rights away."""
    kafka_users.remove(subscriber_user(name))
