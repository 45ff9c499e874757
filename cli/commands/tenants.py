"""retune tenants: who may work."""

from typing import Annotated, Any

import typer

from cli.changes import Changes
from cli.commands import kafka_users
from cli.commands.context import admin_api
from cli.commands.times import shown_time
from cli.output import Output, show, show_json, show_table
from schemas.access import tenant_user

app = typer.Typer(
    add_completion=False, help="Tenants, their API keys and their logins to Kafka.", no_args_is_help=True
)

UserName = Annotated[str, typer.Argument(help="Default: the login that the tenant was created with.")]


@app.command(cls=Changes)
def create(name: str, tier: Annotated[str, typer.Option(help="standard or premium")] = "standard") -> None:
    """Create a tenant with a login to Kafka, or give one a further key. Key and password are shown only now."""
    tenant = admin_api().post("/admin/tenants", {"name": name, "tier": tier})
    show(tenant, _created(tenant))


def _created(tenant: dict[str, Any]) -> str:
    key = str(tenant["api_key"])
    return f"{key}\n{kafka_users.login_text(tenant['kafka'])}" if "kafka" in tenant else key


@app.command("list")
def list_tenants() -> None:
    """List tenants by name."""
    tenants = list(admin_api().pages("/admin/tenants"))
    rows = [
        (each["id"], each["tier"], each["active_keys"], shown_time(each["created_at"])) for each in tenants
    ]
    show_table(tenants, ("name", "tier", "keys", "since"), rows)


@app.command()
def keys(name: str) -> None:
    """List the keys of a tenant, newest first, without their secrets."""
    listed = admin_api().get(f"/admin/tenants/{name}/keys")["data"]
    rows = [
        (each["id"], each["prefix"], shown_time(each["created_at"]), shown_time(each["revoked_at"]))
        for each in listed
    ]
    show_table(listed, ("id", "begins with", "made", "revoked"), rows)


@app.command("revoke-key", cls=Changes)
def revoke_key(name: str, key: Annotated[str, typer.Argument(help="Its id: key-…")]) -> None:
    """Make one key of a tenant stop working."""
    answer = admin_api().post(f"/admin/tenants/{name}/keys/{key}/revoke")
    show(answer, f"{name}: {key} revoked")


@app.command("revoke-keys", cls=Changes)
def revoke_keys(name: str) -> None:
    """Make every key of a tenant stop working."""
    answer = admin_api().post(f"/admin/tenants/{name}/keys/revoke")
    show(answer, f"{name}: {answer['revoked_keys']} keys revoked")


@app.command(cls=Changes)
def quotas(
    name: str,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=NUMBER, NAME=none for no limit, NAME=default; again for more."),
    ] = None,
) -> None:
    """Show what a tenant may have and has, or decide it."""
    path = f"/admin/tenants/{name}/quotas"
    shown = admin_api().get(path)
    if set_:
        shown = admin_api().put(path, _decided(shown, set_))
    if Output.as_json:
        return show_json(shown)
    rows = [
        (
            quota,
            "none" if limit is None else f"{limit:,}",
            shown["used"].get(quota, ""),
            "operator" if quota in shown["decided"] else "default",
        )
        for quota, limit in shown["limits"].items()
    ]
    return show_table((), ("quota", "limit", "used", "decided by"), rows)


def _decided(shown: dict[str, Any], changes: list[str]) -> dict[str, int | None]:
    decided = dict(shown["decided"])
    for change in changes:
        quota, _, value = change.partition("=")
        if quota not in shown["limits"]:
            names = ", ".join(shown["limits"])
            raise typer.BadParameter(f"{quota!r} is no quota, expected one of {names}", param_hint="--set")
        decided.pop(quota, None)
        if value != "default":
            decided[quota] = None if value == "none" else _number(change, value)
    return decided


def _number(change: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise typer.BadParameter(
            f"{change!r}: expected a number, `none` or `default` after =", param_hint="--set"
        )
    return int(value)


@app.command("add-user", cls=Changes)
def add_user(tenant: str, name: str) -> None:
    """One more login to Kafka of a tenant, which writes its commands and reads its events."""
    user = admin_api().post(f"/admin/tenants/{tenant}/users", {"name": name})
    show(user, kafka_users.login_text(user))


@app.command()
def users(tenant: str) -> None:
    """Logins to Kafka of a tenant."""
    kafka_users.show_users(lambda user: user["tenant"] == tenant)


@app.command("rotate-user", cls=Changes)
def rotate_user(tenant: str, name: UserName = "") -> None:
    """Another password for a login."""
    kafka_users.rotate(tenant_user(tenant, name))


@app.command("remove-user", cls=Changes)
def remove_user(tenant: str, name: UserName = "") -> None:
    """Take a login away."""
    kafka_users.remove(tenant_user(tenant, name))
