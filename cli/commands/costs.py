"""retune costs: what attempts cost, who pays, and what of it was wasted."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.commands.context import admin_api, api
from cli.output import Output, show_json, show_table, write

app = typer.Typer(add_completion=False)


class By(StrEnum):
    TENANT = "tenant"
    JOB = "job"
    SWEEP = "sweep"
    EXPERIMENT = "experiment"
    POOL = "pool"
    DAY = "day"
    MONTH = "month"


@app.command()
def costs(
    by: Annotated[
        By, typer.Option(help="What is added up; `experiment` is the one in the job's metadata.")
    ] = By.JOB,
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="Attempts that ended in it (UTC).")
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Of all, with the operator's key.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Lines for a spreadsheet.")] = False,
) -> None:
    """Show what attempts that have ended cost, who pays, and what was wasted on spot nodes."""
    is_of_all = all_tenants or by is By.TENANT
    path, platform = ("/admin/costs", admin_api()) if is_of_all else ("/costs", api())
    if as_csv:
        return write(platform.text(path, by=by.value, month=month, format="csv"), end="")
    answer = platform.get(path, by=by.value, month=month)
    if Output.as_json:
        return show_json(answer)
    total = {"name": "all"} | answer["total"]
    columns = (
        by.value,
        "attempts",
        "device hours",
        "cost USD",
        "charged",
        "free",
        "spot waste",
        "USD/device h",
    )
    return show_table((), columns, map(_row, (*answer["groups"], total)))


def _row(group: dict[str, Any]) -> tuple[object, ...]:
    return (
        group["name"] or "none",
        group["attempts"],
        f"{group['device_hours']:.2f}",
        group["cost_usd"],
        group["charged_usd"],
        group["free_usd"],
        group["spot_waste_usd"],
        group["usd_per_device_hour"],
    )
