"""What every route needs: the service, its settings, and who is calling."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import httpx
from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_dependant

from schemas.base import CommandRefused, Message
from schemas.specification import Tier
from services.gateway import readmodels, store
from services.gateway.access import OPERATOR, Principal, is_same_key
from services.gateway.errors import ApiError
from services.gateway.first_look import FirstLook
from services.gateway.model import JsonObject, Outcome
from services.gateway.quotas import Quotas
from services.gateway.rates import InFlight, Rates
from services.gateway.settings import Settings
from services.gateway.usage import send
from services.gateway.uses import Uses
from services.gateway.webhooks.sender import Sender
from shared.messaging.unit import Unit
from shared.service import Service

POLL_SECONDS = 0.05
MAX_PAGE = 100
LARGE_PAGE = 1_000
"""Longest page, and the default, of lists that OpenAI's client and clients from before pages take to be whole."""
MAX_DIGITS = 18
MAX_SHOWN_CHARACTERS = 80


@dataclass
class Gateway:
    service: Service
    settings: Settings
    http: httpx.AsyncClient
    uses: Uses
    webhooks: Sender
    rates: Rates = field(default_factory=Rates)
    streams: InFlight = field(init=False)
    inference_requests: InFlight = field(init=False)
    transfers: InFlight = field(init=False)
    transfer_bytes: InFlight = field(init=False)
    webhook_tests: InFlight = field(init=False)
    first_look: FirstLook = field(init=False)
    is_stopping: bool = False
    """Streams that would last end; their clients continue at another process."""

    def __post_init__(self) -> None:
        self.streams = InFlight("streams", self.settings.max_streams)
        self.inference_requests = InFlight("inference_requests", self.settings.max_inference_requests)
        self.transfers = InFlight("transfers", self.settings.max_transfers)
        self.transfer_bytes = InFlight("transfer_bytes", self.settings.max_transfer_bytes)
        self.webhook_tests = InFlight("webhook_tests", self.settings.webhook_max_in_flight)
        self.first_look = FirstLook(self.settings.scratch_dir)

    def stop(self) -> None:
        self.is_stopping = True

    @contextmanager
    def transfer(self, caller: Principal, size_bytes: int) -> Iterator[None]:
        """Count a file that is sent or fetched until it is. Raises QuotaExceeded and ApiError."""
        quotas = caller.quotas
        with (
            self.transfers.hold(caller.tenant, quotas.transfers),
            self.transfer_bytes.hold(caller.tenant, quotas.transfer_bytes, amount=size_bytes),
        ):
            yield

    async def send(self, unit: Unit, tenant: str, *commands: Message) -> list[str]:
        """What a tenant asks for, within its quotas; the ids of the commands. Raises QuotaExceeded."""
        return await send(unit, tenant, self.settings.quotas, *commands)

    async def dry_run(self, work: Callable[[Unit], Awaitable[JsonObject]]) -> JsonObject:
        """Return what the work would be answered with, and keep nothing of it. Raises what the work raises."""
        try:
            async with self.service.unit() as unit:
                raise _Undone(await work(unit))  # noqa: TRY301 - it ends the transaction
        except _Undone as undone:
            return undone.answer

    async def outcome_of(self, command_id: str) -> JsonObject | None:
        """What became of a command: the payload of the first fact or refusal it caused; None if it takes longer.

        Raises ApiError with the reason where it was refused.
        """
        until = time.monotonic() + self.settings.command_wait_seconds
        while time.monotonic() < until:
            outcome = await readmodels.find_outcome(self.service.database, command_id)
            if outcome is not None:
                return _accepted(outcome)
            await asyncio.sleep(POLL_SECONDS)
        return None

    async def refusal_of(self, command_id: str) -> ApiError | None:
        """The reason where a command was refused by now."""
        outcome = await readmodels.find_outcome(self.service.database, command_id)
        return None if outcome is None else _refusal_in(outcome)


class _Undone(Exception):
    def __init__(self, answer: JsonObject) -> None:
        super().__init__()
        self.answer = answer


def _refusal_in(outcome: Outcome) -> ApiError | None:
    if outcome.event_type != CommandRefused.type:
        return None
    return refusal(CommandRefused.model_validate(outcome.payload))


def _accepted(outcome: Outcome) -> JsonObject:
    if (problem := _refusal_in(outcome)) is not None:
        raise problem
    return outcome.payload


def refusal(event: CommandRefused) -> ApiError:
    """Never 409: OpenAI's clients send the same request again after it."""
    status = 404 if event.code.startswith("unknown") else 400
    return ApiError(status, event.message, param=event.param, code=event.code)


def gateway(request: Request) -> Gateway:
    context: Gateway = request.app.state.gateway
    return context


async def principal(request: Request, context: Annotated[Gateway, Depends(gateway)]) -> Principal:
    key = _bearer(request)
    caller = await store.find_principal(context.service.database, key, context.settings.quotas)
    if caller is None:
        raise _unauthorised("the API key is not known or was revoked")
    context.rates.take(caller.key_id, caller.quotas.requests_per_minute, now=time.monotonic())
    _require_known_parameters(request)
    return caller


async def admin(request: Request, context: Annotated[Gateway, Depends(gateway)]) -> Principal:
    if not is_same_key(_bearer(request), context.settings.admin_key.get_secret_value()):
        raise _unauthorised("this route needs the admin key")
    _require_known_parameters(request)
    return Principal(OPERATOR, Tier.PREMIUM, Quotas.none())


def _require_known_parameters(request: Request) -> None:
    """Raises ApiError for a query parameter that the route does not have; `metadata[key]` is of `metadata`."""
    if not request.query_params:
        return
    parameters = get_flat_dependant(request.scope["route"].dependant).query_params
    known = sorted(field.alias for field in parameters)
    for name in request.query_params:
        if name.partition("[")[0] not in known:
            shown = name[:MAX_SHOWN_CHARACTERS]
            expected = ", ".join(known) or "none"
            message = f"{shown}: unknown query parameter, expected {expected}"
            raise ApiError(400, message, param=shown, code="unknown_parameter")


def _bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise _unauthorised("the header Authorization: Bearer <API key> is missing")
    return key


def _unauthorised(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", kind="authentication_error")


def page_size(limit: int, *, at_most: int = MAX_PAGE) -> int:
    if not 1 <= limit <= at_most:
        message = f"limit: found {limit}, expected 1 to {at_most}"
        raise ApiError(400, message, param="limit", code="invalid_value")
    return limit


def parse_cursor(row_id: str | None, prefix: str, *, param: str) -> int | None:
    """Return the number in an id such as `ftevent-12`; None without an id. Raises ApiError for any other text."""
    if row_id is None:
        return None
    number = row_id.removeprefix(f"{prefix}-")
    if number == row_id or not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS):
        message = f"{param}: found {row_id[:80]!r}, expected {prefix}-<number>"
        raise ApiError(400, message, param=param, code="invalid_value")
    return int(number)


def invalid_cursor(after: str) -> ApiError:
    """Answer a request for a page that begins after something that is not in the list."""
    return ApiError(400, f"after: {after[:80]!r} is not in this list", param="after", code="invalid_value")


Caller = Annotated[Principal, Depends(principal)]
Admin = Annotated[Principal, Depends(admin)]
Context = Annotated[Gateway, Depends(gateway)]
