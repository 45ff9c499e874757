"""Who looks at the page: a cookie that stands for an API key and opens nothing once the key is revoked.

The cookie has 256 random bits of its own, of which Postgres has the sha256. SameSite=Strict keeps it from requests
that another site begins; beside it, each form has a token that follows from the cookie, and a request that a browser
says to come from elsewhere is refused.
"""

import hashlib
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Form, Header, Request, Response

from schemas.specification import Tier
from services.gateway import store
from services.gateway.access import OPERATOR, Principal, is_same_key
from services.gateway.alerts import count_open_alerts
from services.gateway.deps import Context, Gateway
from services.gateway.errors import ApiError
from services.gateway.quotas import Quotas

COOKIE = "retune_session"
LIFETIME = timedelta(days=7)
OPERATORS_COOKIE = "retune_operator"
OPERATORS_LIFETIME = timedelta(hours=12)
OPERATORS_PATH = "/admin"
"""Where a browser sends the operator's cookie, and nowhere else."""
OWN_SITES = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of a request from our own page, or of one that a person typed."""


@dataclass(frozen=True)
class Visitor:
    principal: Principal
    csrf: str
    """What every form of the session carries."""
    num_alerts: int = 0
    """Open ones of the tenant."""


def new_token() -> str:
    return secrets.token_urlsafe(32)


def csrf_of(token: str) -> str:
    """Follows from the cookie, which no other site can read; the cookie does not follow from it."""
    return hashlib.sha256(f"csrf {token}".encode()).hexdigest()


def is_over_tls(request: Request) -> bool:
    """By the connection, or by the word of a proxy, which can do no harm: it makes the cookie stricter."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in (request.url.scheme, forwarded)


def set_cookie(request: Request, response: Response, token: str) -> None:
    _set(request, response, COOKIE, token, lifetime=LIFETIME, path="/")


def set_operators_cookie(request: Request, response: Response, token: str) -> None:
    _set(request, response, OPERATORS_COOKIE, token, lifetime=OPERATORS_LIFETIME, path=OPERATORS_PATH)


def _set(
    request: Request, response: Response, name: str, token: str, *, lifetime: timedelta, path: str
) -> None:
    response.set_cookie(
        name,
        token,
        max_age=int(lifetime.total_seconds()),
        path=path,
        httponly=True,
        samesite="strict",
        secure=is_over_tls(request),
    )


async def visitor(request: Request, context: Context) -> Visitor:
    """Raises ApiError 401, which the page answers with its login. Errors after it are shown to the same visitor."""
    token = request.cookies.get(COOKIE, "")
    caller = await store.find_visitor(context.service.database, token, context.settings.quotas)
    if caller is None:
        raise ApiError(401, "log in: the session or its API key has ended", code="not_logged_in")
    context.rates.take(caller.key_id, caller.quotas.requests_per_minute, now=time.monotonic())
    num_alerts = await count_open_alerts(context.service.database, caller.tenant)
    present = Visitor(caller, csrf_of(token), num_alerts)
    request.state.visitor = present
    return present


async def sender(
    request: Request,
    present: Annotated[Visitor, Depends(visitor)],
    csrf: Annotated[str, Form()] = "",
    csrf_header: Annotated[str, Header(alias="x-csrf-token")] = "",
) -> Visitor:
    """Who sends a form of our own. Raises ApiError 403 for any other."""
    require_own_site(request)
    if not is_same_key(csrf or csrf_header, present.csrf):
        raise ApiError(403, "the form is of another session: load the page again", code="csrf_failed")
    return present


def operators_key_id(context: Gateway) -> str:
    """Follows from the operator's key, so that another key ends the sessions of the one before."""
    key = context.settings.admin_key.get_secret_value()
    return f"operator-{hashlib.sha256(f'session of the operator {key}'.encode()).hexdigest()[:32]}"


async def operator(request: Request, context: Context) -> Visitor:
    """Raises ApiError 401 for everybody else, tenants' people too."""
    token = request.cookies.get(OPERATORS_COOKIE, "")
    key_id = operators_key_id(context)
    if not await store.is_operators_session(context.service.database, token, key_id):
        raise ApiError(401, "log in with the operator's key", code="not_logged_in")
    return Visitor(Principal(OPERATOR, Tier.PREMIUM, Quotas.none(), key_id="operator"), csrf_of(token))


async def is_open(request: Request, context: Gateway, present: Visitor) -> bool:
    """Whether the session of the request, which was the visitor's when it began, has not ended since."""
    database = context.service.database
    if present.principal.tenant == OPERATOR:
        token = request.cookies.get(OPERATORS_COOKIE, "")
        return await store.is_operators_session(database, token, operators_key_id(context))
    token = request.cookies.get(COOKIE, "")
    return await store.find_visitor(database, token, context.settings.quotas) is not None


async def operator_sender(
    request: Request, present: Annotated[Visitor, Depends(operator)], csrf: Annotated[str, Form()] = ""
) -> Visitor:
    """The operator, who sends a form of our own. Raises ApiError 403 for any other."""
    require_own_site(request)
    if not is_same_key(csrf, present.csrf):
        raise ApiError(403, "the form is of another session: load the page again", code="csrf_failed")
    return present


def require_own_site(request: Request) -> None:
    """Raises ApiError where the browser says that another site sends the request. A client that says nothing of the
    kind is no browser, which nobody else can make send a cookie.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site in OWN_SITES
    else:
        is_own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if not is_own:
        raise ApiError(403, "another site sent this form: open the page itself", code="foreign_site")


def safe_path(path: str) -> str:
    """Return where a login leads: a path of this page, never another site."""
    parts = urlsplit(path)
    is_ours = (
        path.startswith("/") and not parts.netloc and not parts.scheme and not path.startswith(("//", "/\\"))
    )
    return path if is_ours and path.isprintable() else "/"


Present = Annotated[Visitor, Depends(visitor)]
Sender = Annotated[Visitor, Depends(sender)]
Operator = Annotated[Visitor, Depends(operator)]
OperatorSender = Annotated[Visitor, Depends(operator_sender)]
