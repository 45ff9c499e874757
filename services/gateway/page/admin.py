"""What the operator decides: tenants with their keys and quotas, and who has a login to Kafka."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import ValidationError

from schemas.topics import TOPICS
from services.gateway import machines, readmodels, store, tenants
from services.gateway.deps import LARGE_PAGE, Context, Gateway
from services.gateway.errors import ApiError, first_problem
from services.gateway.page import machines as machine_views
from services.gateway.page import render, streams
from services.gateway.page.sessions import Operator, OperatorSender, Visitor
from services.gateway.quotas import Quotas
from services.gateway.requests import CreateSubscriber, CreateTenant, CreateUser
from services.gateway.responses import KafkaLogin
from services.gateway.routes import admin, kafka_users, quotas

router = APIRouter(prefix="/admin")

ROWS = 100
NO_LIMIT = "none"
SUBSCRIBED = tuple(sorted(topic.name for topic in TOPICS if topic.is_event_stream))
"""Topics that a subscriber may be given."""


@dataclass(frozen=True)
class Secret:
    """What is shown once: in this answer, and in no other."""

    api_key: str = ""
    login: KafkaLogin | None = None


BYTES = {"TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
SIZE = re.compile(rf"([0-9]{{1,15}}(?:\.[0-9]{{1,6}})?)\s*({'|'.join(BYTES)})")


@dataclass(frozen=True)
class QuotaView:
    name: str
    help: str
    limit: int | None
    default: int | None
    used: int | float | None
    """None where it is not counted in tables."""
    typed: str
    """What the form's field holds: empty for the default."""


@dataclass(frozen=True)
class Refused:
    """What a form held, and why it was refused."""

    form: str
    typed: Mapping[str, Any]
    param: str
    message: str
    status: int = 400


def quota_views(
    limits: Quotas, decided: Mapping[str, Any], used: Mapping[str, float], defaults: Quotas
) -> list[QuotaView]:
    return [
        QuotaView(
            name,
            " ".join((field.description or "").split()),
            getattr(limits, name),
            getattr(defaults, name),
            used.get(name),
            "" if name not in decided else typed_of(name, decided[name]),
        )
        for name, field in Quotas.model_fields.items()
    ]


def typed_of(name: str, limit: int | None) -> str:
    """Write a limit as the form takes it: bytes in the greatest unit of which they are a multiple."""
    if limit is None:
        return NO_LIMIT
    if is_bytes(name):
        unit = next((unit for unit in BYTES if limit and limit % BYTES[unit] == 0), "B")
        return f"{limit // BYTES[unit]:,} {unit}"
    return str(limit)


def is_bytes(name: str) -> bool:
    return name.endswith("_bytes")


def bytes_of(text: str) -> str:
    """Return the number of bytes that `20 GiB` means; a text that means none as it is, for the quota's own check."""
    match = SIZE.fullmatch(text)
    return text if match is None else str(int(Decimal(match[1]) * BYTES[match[2]]))


def quotas_of(typed: Mapping[str, str]) -> Quotas:
    """Return what differs from the defaults. Raises ValidationError."""
    values = {name: value.strip().replace(",", "") for name, value in typed.items()}
    values = {name: bytes_of(value) if is_bytes(name) else value for name, value in values.items()}
    return Quotas.model_validate({
        name: None if value == NO_LIMIT else value for name, value in values.items() if value
    })  # fmt: skip


@router.get("")
async def listed(request: Request, visitor: Operator, context: Context, after: str = "") -> HTMLResponse:
    """All tenants by name."""
    return await _list(request, visitor, context, after=after)


async def _list(
    request: Request, visitor: Visitor, context: Gateway, *, after: str = "", refused: Refused | None = None
) -> HTMLResponse:
    database = context.service.database
    rows = await tenants.list_tenants(database, after=after, limit=ROWS + 1)
    return render.page(
        request,
        "admin_tenants.html.jinja",
        visitor,
        status=refused.status if refused else 200,
        tenants=rows[:ROWS],
        next=rows[ROWS - 1].name if len(rows) > ROWS else None,
        after=after,
        refused=refused,
        now=database.now(),
    )


@router.post("")
async def create_tenant(
    request: Request,
    sender: OperatorSender,
    context: Context,
    name: Annotated[str, Form()] = "",
    tier: Annotated[str, Form()] = "standard",
) -> Response:
    """The page of the tenant with its first key and its login to Kafka, which are shown only here."""
    typed = {"name": name.strip(), "tier": tier}
    try:
        body = CreateTenant.model_validate(typed)
    except ValidationError as error:
        refused = _refused("tenant", typed, first_problem(error.errors(include_url=False)))
        return await _list(request, sender, context, refused=refused)
    if await store.find_tier(context.service.database, body.name) is not None:
        refused = Refused(
            "tenant", typed, "name", f"name: there is a tenant {body.name!r}: its page adds keys"
        )
        return await _list(request, sender, context, refused=refused)
    created = await admin.create_tenant(sender.principal, context, body)
    return await _tenant(request, sender, context, body.name, secret=Secret(created.api_key, created.kafka))


def _refused(form: str, typed: Mapping[str, Any], error: ApiError) -> Refused:
    shown = error.body["error"]
    return Refused(form, typed, shown["param"] or "", shown["message"] or "", error.status)


@router.get("/tenants/{name}")
async def tenant(request: Request, visitor: Operator, context: Context, name: str) -> HTMLResponse:
    return await _tenant(request, visitor, context, name)


async def _tenant(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    name: str,
    *,
    secret: Secret | None = None,
    refused: Refused | None = None,
) -> HTMLResponse:
    shown = await quotas.retrieve(visitor.principal, context, name)
    keys = await admin.list_keys(visitor.principal, context, name)
    views = quota_views(shown.limits, shown.decided, shown.used, context.settings.quotas)
    if refused and refused.form == "quotas":
        views = [QuotaView(**{**vars(each), "typed": refused.typed.get(each.name, "")}) for each in views]
    return render.page(
        request,
        "admin_tenant.html.jinja",
        visitor,
        status=refused.status if refused else 200,
        name=name,
        keys=[(each, _time(each.created_at), _time(each.revoked_at)) for each in keys.data],
        quotas=views,
        users=await _users(visitor, context, lambda owner: owner == name),
        secret=secret,
        refused=refused,
        now=context.service.database.now(),
    )


def _time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


async def _users(
    visitor: Visitor, context: Gateway, is_wanted: Callable[[str | None], bool]
) -> list[tuple[Any, datetime | None]]:
    """Logins to Kafka by name, with when each was changed, of the first thousand that there are."""
    users = await kafka_users.list_users(visitor.principal, context, limit=LARGE_PAGE)
    return [(each, _time(each.changed_at)) for each in users.data if is_wanted(each.tenant)]


@router.post("/tenants/{name}/keys")
async def add_key(request: Request, sender: OperatorSender, context: Context, name: str) -> HTMLResponse:
    """One more key, shown only here."""
    await quotas.retrieve(sender.principal, context, name)
    created = await admin.create_tenant(sender.principal, context, CreateTenant(name=name))
    return await _tenant(request, sender, context, name, secret=Secret(created.api_key))


@router.post("/tenants/{name}/keys/{key_id}/revoke")
async def revoke_key(
    request: Request,
    sender: OperatorSender,
    context: Context,
    name: str,
    key_id: str,
    typed: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """`typed`: the key's id, by hand."""
    _require_typed(typed, key_id)
    await admin.revoke_key(sender.principal, context, name, key_id)
    return _to(f"/admin/tenants/{name}")


def _require_typed(typed: str, expected: str) -> None:
    if typed.strip() != expected:
        message = f"typed: found {typed[:80]!r}, expected {expected!r}"
        raise ApiError(400, message, param="typed", code="invalid_value")


def _to(path: str) -> Response:
    return RedirectResponse(path, 303, render.HEADERS)


@router.post("/tenants/{name}/quotas")
async def decide(request: Request, sender: OperatorSender, context: Context, name: str) -> Response:
    """What differs from the defaults; an empty field is the default, `none` no limit."""
    sent = await request.form()
    typed = {each: str(sent.get(each, "")) for each in Quotas.model_fields}
    try:
        body = quotas_of(typed)
    except ValidationError as error:
        refused = _refused("quotas", typed, first_problem(error.errors(include_url=False)))
        return await _tenant(request, sender, context, name, refused=refused)
    await quotas.decide(sender.principal, context, name, body)
    return _to(f"/admin/tenants/{name}")


@router.post("/tenants/{name}/users")
async def add_user(
    request: Request,
    sender: OperatorSender,
    context: Context,
    name: str,
    user: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """One more login to Kafka of the tenant; its password is shown only here."""
    typed = {"user": user.strip()}
    try:
        body = CreateUser(name=user.strip())
        login = await kafka_users.create_user(sender.principal, context, name, body)
    except ValidationError as error:
        refused = _refused("user", typed, first_problem(error.errors(include_url=False)))
        return await _tenant(request, sender, context, name, refused=refused)
    except ApiError as error:
        if error.status != 400:
            raise
        return await _tenant(request, sender, context, name, refused=_refused("user", typed, error))
    return await _tenant(request, sender, context, name, secret=Secret(login=login))


@router.get("/machines")
async def listed_machines(request: Request, visitor: Operator, context: Context) -> HTMLResponse:
    """Pools with their machines: held by which jobs, leased for what, cordoned or drained and why."""
    shown = await _machines(context)
    return render.page(
        request, "admin_machines.html.jinja", visitor, stream="/admin/machines/stream", **shown
    )


@router.get("/machines/stream")
async def machines_stream(request: Request, visitor: Operator, context: Context) -> StreamingResponse:
    return streams.follow_part(
        request,
        context,
        visitor,
        partial(_machines, context),
        element_id="machines",
        template="admin_machines_parts.html.jinja",
    )


async def _machines(context: Gateway) -> dict[str, Any]:
    database = context.service.database
    facts = await readmodels.list_pools(database)
    held, cordons = await machines.list_held(database), await machines.list_cordons(database)
    now = database.now()
    shown = machine_views.pools(facts, held, cordons, now=now)
    return {"pools": shown, "now": now, "version": streams.version_of(shown)}


@router.get("/subscribers")
async def subscribers(request: Request, visitor: Operator, context: Context) -> HTMLResponse:
    """Logins of internal teams, which read topics and write none."""
    return await _subscribers(request, visitor, context)


async def _subscribers(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    *,
    secret: Secret | None = None,
    refused: Refused | None = None,
) -> HTMLResponse:
    return render.page(
        request,
        "admin_subscribers.html.jinja",
        visitor,
        status=refused.status if refused else 200,
        users=await _users(visitor, context, lambda owner: owner is None),
        topics=SUBSCRIBED,
        secret=secret,
        refused=refused,
        now=context.service.database.now(),
    )


@router.post("/subscribers")
async def create_subscriber(
    request: Request,
    sender: OperatorSender,
    context: Context,
    name: Annotated[str, Form()] = "",
    topics: Annotated[list[str], Form()] = [],  # noqa: B006, FastAPI copies it
    of_tenants: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Its password is shown only here."""
    typed = {"name": name.strip(), "topics": topics, "of_tenants": of_tenants}
    try:
        body = CreateSubscriber(
            name=name.strip(), topics=tuple(topics), tenants=tuple(of_tenants.replace(",", " ").split())
        )
        login = await kafka_users.create_subscriber(sender.principal, context, body)
    except ValidationError as error:
        refused = _refused("subscriber", typed, first_problem(error.errors(include_url=False)))
        return await _subscribers(request, sender, context, refused=refused)
    except ApiError as error:
        refused = _refused("subscriber", typed, error)
        return await _subscribers(request, sender, context, refused=refused)
    return await _subscribers(request, sender, context, secret=Secret(login=login))


@router.post("/users/{user}/rotate")
async def rotate(
    request: Request,
    sender: OperatorSender,
    context: Context,
    user: str,
    of_tenant: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Another password, shown only here. `of_tenant`: whose page it is asked on; empty for a subscriber's."""
    login = await kafka_users.rotate(sender.principal, context, user)
    secret = Secret(login=login)
    if of_tenant:
        return await _tenant(request, sender, context, of_tenant, secret=secret)
    return await _subscribers(request, sender, context, secret=secret)


@router.post("/users/{user}/remove")
async def remove(
    request: Request,
    sender: OperatorSender,
    context: Context,
    user: str,
    typed: Annotated[str, Form(max_length=300)] = "",
    of_tenant: Annotated[str, Form()] = "",
) -> Response:
    """`typed`: the user's name, by hand."""
    _require_typed(typed, user)
    await kafka_users.remove(sender.principal, context, user)
    return _to(f"/admin/tenants/{of_tenant}" if of_tenant else "/admin/subscribers")


@router.get("/audit")
async def audit(request: Request, visitor: Operator) -> HTMLResponse:
    """How the chain of the topics is verified: its statements lie where no service of ours can change them."""
    return render.page(request, "admin_audit.html.jinja", visitor)
