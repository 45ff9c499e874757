"""retune tenants: who may work."""

from typing import Annotated

import typer

from services.admin.commands.context import admin_api
from services.admin.output import show

app = typer.Typer(help="Tenants and their API keys.", no_args_is_help=True)


@app.command()
def create(name: str, tier: Annotated[str, typer.Option(help="standard or premium")] = "standard") -> None:
    """Create a tenant, or give one a further key. The key is shown only now."""
    found = admin_api().post("/admin/tenants", {"name": name, "tier": tier})
    show(found, found["api_key"])


@app.command("revoke-keys")
def revoke_keys(name: str) -> None:
    """Make every key of a tenant stop working."""
    found = admin_api().post(f"/admin/tenants/{name}/keys/revoke")
    show(found, f"{name}: {found['revoked_keys']} keys revoked")
