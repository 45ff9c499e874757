"""/v1/admin, for the operator's key: who has a login to Kafka beside the services. Passwords are shown once."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Path

from schemas.access import (
    AddSubscriber,
    AddTenantUser,
    KafkaUserCommand,
    KafkaUserReady,
    RemoveKafkaUser,
    RotateKafkaUser,
    subscriber_user,
    tenant_user,
)
from schemas.envelope import MAX_NAME_BYTES
from services.gateway import readmodels, representations, responses, store
from services.gateway.deps import LARGE_PAGE, Admin, Context, Gateway, page_size
from services.gateway.errors import not_found
from services.gateway.model import JsonObject
from services.gateway.requests import CreateSubscriber, CreateUser
from services.gateway.responses import KafkaLogin, Page, RemovedKafkaUser
from shared.passwords import derived_password

router = APIRouter()
NONCE_BYTES = 16
UserInPath = Annotated[str, Path(max_length=MAX_NAME_BYTES)]


@router.get("/admin/kafka-users")
async def list_users(
    admin: Admin, context: Context, after: str = "", limit: int = LARGE_PAGE
) -> Page[responses.KafkaUser]:
    """List users by name."""
    size = page_size(limit, at_most=LARGE_PAGE)
    users = await readmodels.list_kafka_users(context.service.database, after=after, limit=size + 1)
    return representations.page([*map(representations.kafka_user, users)], size=size)


@router.post("/admin/tenants/{tenant}/users", response_model_exclude_none=True)
async def create_user(admin: Admin, context: Context, tenant: str, body: CreateUser) -> KafkaLogin:
    """One more login of a tenant; its topics are made where they lack."""
    await _require_tenants(context, tenant)
    return await add_tenant_user(context, tenant, body.name)


@router.post("/admin/subscribers", response_model_exclude_none=True)
async def create_subscriber(admin: Admin, context: Context, body: CreateSubscriber) -> KafkaLogin:
    """A login of an internal team, which reads topics of all tenants or those of some, and writes nothing."""
    await _require_tenants(context, *body.tenants)
    user, nonce = subscriber_user(body.name), new_nonce()
    command = AddSubscriber(user=user, topics=body.topics, tenants=body.tenants, nonce=nonce)
    return await _changed(context, command, nonce)


@router.post("/admin/kafka-users/{user}/rotate", response_model_exclude_none=True)
async def rotate(admin: Admin, context: Context, user: UserInPath) -> KafkaLogin:
    """Another password; connections that are open stay so until they close."""
    nonce = new_nonce()
    return await _changed(context, RotateKafkaUser(user=user, nonce=nonce), nonce)


@router.delete("/admin/kafka-users/{user}")
async def remove(admin: Admin, context: Context, user: UserInPath) -> RemovedKafkaUser:
    is_answered = await _send(context, RemoveKafkaUser(user=user)) is not None
    return RemovedKafkaUser(object="kafka_user", username=user, deleted=is_answered)


async def add_tenant_user(context: Gateway, tenant: str, name: str = "") -> KafkaLogin:
    user, nonce = tenant_user(tenant, name), new_nonce()
    return await _changed(context, AddTenantUser(user=user, tenant=tenant, nonce=nonce), nonce)


def new_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


async def _changed(context: Gateway, command: KafkaUserCommand, nonce: str) -> KafkaLogin:
    answer = await _send(context, command)
    ready = None if answer is None else KafkaUserReady.model_validate(answer)
    secret = context.settings.password_secret.get_secret_value()
    return KafkaLogin(
        object="kafka_user",
        username=command.user,
        password=derived_password(secret, command.user, nonce),
        state="ready" if ready else "pending",
        reads=ready and ready.reads,
        writes=ready and ready.writes,
        group_prefix=ready and ready.group_prefix,
    )


async def _send(context: Gateway, command: KafkaUserCommand) -> JsonObject | None:
    """Raises ApiError where it is refused."""
    async with context.service.unit() as unit:
        command_id = (await unit.emit(command))[0]
    return await context.outcome_of(command_id)


async def _require_tenants(context: Gateway, *tenants: str) -> None:
    for tenant in tenants:
        if await store.find_tier(context.service.database, tenant) is None:
            raise not_found("tenant", tenant)
