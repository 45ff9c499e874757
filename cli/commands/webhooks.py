"""retune webhooks: where the platform sends events, and what became of them."""

from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands.context import api
from cli.commands.times import shown_time
from cli.output import show, show_table

app = typer.Typer(
    add_completion=False,
    help="Endpoints that events are sent to, and their deliveries.",
    no_args_is_help=True,
)

ENDED = ("fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled")
Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Its id: whe_…")]


@app.command(cls=Changes)
def create(
    url: str,
    event: Annotated[
        list[str] | None, typer.Option(help="Type of event; again for more. Default: the ends of jobs.")
    ] = None,
    name: Annotated[str, typer.Option(help="For people.")] = "webhook",
) -> None:
    """Have events sent to a URL. The signing secret is shown only now."""
    body = {"name": name, "url": url, "event_types": event or list(ENDED)}
    endpoint = api().post("/webhook_endpoints", body)
    show(endpoint, _with_secret(endpoint))


@app.command("event-types")
def event_types() -> None:
    """List the types of events to choose from."""
    names = api().get("/webhook_event_types")["data"]
    show_table(names, ("type",), [(name,) for name in names])


@app.command("list")
def list_endpoints() -> None:
    """List endpoints, newest first."""
    endpoints = list(api().pages("/webhook_endpoints"))
    rows = [
        (each["id"], each["name"], each["url"], ", ".join(each["event_types"]), _status(each["retune"]))
        for each in endpoints
    ]
    show_table(endpoints, ("id", "name", "url", "events", "status"), rows)


@app.command("test", cls=Changes)
def send_test(
    endpoint: Endpoint, event: Annotated[str, typer.Option(help="Type of the sample event.")] = "ping"
) -> None:
    """Send a sample event now."""
    answer = api().post(f"/webhook_endpoints/{endpoint}/test", {"event_type": event})
    show(answer, f"{endpoint}: answered {answer['status_code']} to {answer['event_type']}")


@app.command()
def deliveries(
    endpoint: Endpoint,
    status: Annotated[str | None, typer.Option(help="pending, delivered or failed")] = None,
) -> None:
    """List deliveries, newest first."""
    each_one = list(api().pages(f"/webhook_endpoints/{endpoint}/deliveries", status=status))
    rows = [
        (
            each["id"],
            each["event_type"],
            each["subject"],
            each["status"],
            each["attempts"],
            each["status_code"] or each["error"],
            shown_time(each["last_attempt_at"]),
            shown_time(each["next_attempt_at"]),
        )
        for each in each_one
    ]
    columns = ("id", "event", "about", "status", "attempts", "answer", "last attempt", "next attempt")
    show_table(each_one, columns, rows)


@app.command(cls=Changes)
def replay(
    endpoint: Endpoint,
    delivery: Annotated[
        str | None, typer.Argument(metavar="[DELIVERY]", help="Its id, whd_…; default: all that failed.")
    ] = None,
) -> None:
    """Deliver an event again, under the same id; without one all that failed, the oldest first."""
    path = f"/webhook_endpoints/{endpoint}/deliveries"
    failed = [] if delivery else [each["id"] for each in api().pages(path, status="failed")]
    again = api().post_each([f"{path}/{each}/replay" for each in ([delivery] if delivery else failed[::-1])])
    show(again, "\n".join(f"{each['replay_of']}: again as {each['id']}" for each in again))


@app.command(cls=Changes)
def rotate(
    endpoint: Endpoint,
    end_old: Annotated[
        bool, typer.Option("--end-old", help="End the old secret now, not in 24 hours.")
    ] = False,
) -> None:
    """Another signing secret, shown only now. For 24 hours deliveries are signed with both."""
    body = {"keep_old_secret_active_for_24_hours": not end_old}
    rotated = api().post(f"/webhook_endpoints/{endpoint}/rotate_secret", body)
    show(rotated, _with_secret(rotated))


@app.command(cls=Changes)
def update(
    endpoint: Endpoint,
    url: Annotated[str | None, typer.Option(help="Where events are sent from now on.")] = None,
    event: Annotated[
        list[str] | None, typer.Option(help="Type of event; again for more. They replace the present ones.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
) -> None:
    """Change an endpoint; what is left out stays. The signing secret does, too."""
    fields = {"url": url, "event_types": event, "name": name}
    body = {field: value for field, value in fields.items() if value}
    changed = api().post(f"/webhook_endpoints/{endpoint}", body)
    show(changed, f"{endpoint}: {changed['name']}, {changed['url']}, {', '.join(changed['event_types'])}")


@app.command(cls=Changes)
def enable(endpoint: Endpoint) -> None:
    """Send events to an endpoint that was switched off, those first that wait."""
    _set_status(endpoint, "enabled")


@app.command(cls=Changes)
def disable(endpoint: Endpoint) -> None:
    """Send nothing until the endpoint is enabled; events of that time are left out."""
    _set_status(endpoint, "disabled")


@app.command(cls=Changes)
def delete(endpoint: Endpoint) -> None:
    """Delete an endpoint with the log of its deliveries."""
    answer = api().delete(f"/webhook_endpoints/{endpoint}")
    show(answer, f"{endpoint}: deleted")


def _set_status(endpoint: str, status: str) -> None:
    changed = api().post(f"/webhook_endpoints/{endpoint}", {"retune": {"status": status}})
    show(changed, f"{endpoint}: {_status(changed['retune'])}")


def _with_secret(endpoint: dict[str, Any]) -> str:
    return f"id      {endpoint['id']}\nsecret  {endpoint['signing_secret']}"


def _status(state: dict[str, Any]) -> str:
    if state["status"] == "disabled":
        return f"disabled: {state['reason']}"
    return f"failing since {shown_time(state['failing_since'])}" if state["failing_since"] else "enabled"
