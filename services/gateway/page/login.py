"""Log in with an API key, log out, and the static files, which need no login."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from services.gateway import store
from services.gateway.access import is_same_key
from services.gateway.deps import Context, Gateway
from services.gateway.errors import not_found
from services.gateway.page import assets, render, sessions
from services.gateway.page.sessions import OperatorSender, Sender

router = APIRouter()

FOR_GOOD = "public, max-age=31536000, immutable"
MAX_KEY_CHARACTERS = 256


@router.get("/login")
async def form(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002, the name that browsers' users know
    return _form(request, next)


def _form(request: Request, path: str, *, problem: str = "", status: int = 200) -> HTMLResponse:
    path = sessions.safe_path(path)
    return render.page(
        request,
        "login.html.jinja",
        None,
        status=status,
        next=path,
        problem=problem,
        is_operators=is_operators(path),
    )


@router.post("/login")
async def log_in(
    request: Request,
    context: Context,
    key: Annotated[str, Form(max_length=MAX_KEY_CHARACTERS)] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
) -> Response:
    """Another site could log a person in as somebody else, who then sees what the person does."""
    sessions.require_own_site(request)
    database = context.service.database
    operators_key = context.settings.admin_key.get_secret_value()
    if operators_key and is_same_key(key.strip(), operators_key):
        return await _log_in_operator(request, context, sessions.safe_path(next))
    caller = await store.find_principal(database, key.strip(), context.settings.quotas)
    if caller is None:
        problem = (
            "This key is not known or was revoked. A key begins with sk-retune-; the operator makes new ones."
        )
        return _form(request, next, problem=problem, status=401)
    token = sessions.new_token()
    await store.add_session(database, token, caller.key_id, lifetime=sessions.LIFETIME)
    answer = RedirectResponse(sessions.safe_path(next), 303, render.HEADERS)
    sessions.set_cookie(request, answer, token)
    return answer


async def _log_in_operator(request: Request, context: Gateway, path: str) -> Response:
    token, key_id = sessions.new_token(), sessions.operators_key_id(context)
    await store.add_session(context.service.database, token, key_id, lifetime=sessions.OPERATORS_LIFETIME)
    answer = RedirectResponse(path if is_operators(path) else sessions.OPERATORS_PATH, 303, render.HEADERS)
    sessions.set_operators_cookie(request, answer, token)
    return answer


def is_operators(path: str) -> bool:
    return path.partition("?")[0] == sessions.OPERATORS_PATH or path.startswith(f"{sessions.OPERATORS_PATH}/")


@router.post("/admin/logout")
async def log_out_operator(request: Request, context: Context, sender: OperatorSender) -> Response:
    await store.end_session(context.service.database, request.cookies[sessions.OPERATORS_COOKIE])
    answer = RedirectResponse("/login", 303, render.HEADERS)
    answer.delete_cookie(sessions.OPERATORS_COOKIE, path=sessions.OPERATORS_PATH)
    return answer


@router.post("/logout")
async def log_out(request: Request, context: Context, sender: Sender) -> Response:
    await store.end_session(context.service.database, request.cookies[sessions.COOKIE])
    answer = RedirectResponse("/login", 303, render.HEADERS)
    answer.delete_cookie(sessions.COOKIE, path="/")
    return answer


@router.get("/static/{digest}/{name:path}")
async def static(request: Request, digest: str, name: str) -> Response:
    asset = assets.assets().get(name)
    if asset is None or asset.digest != digest:
        raise not_found("file", name)
    headers = {"cache-control": FOR_GOOD, "x-content-type-options": "nosniff", "vary": "accept-encoding"}
    if not render.takes_gzip(request):
        return Response(asset.content, media_type=asset.media_type, headers=headers)
    return Response(
        asset.compressed, media_type=asset.media_type, headers={**headers, "content-encoding": "gzip"}
    )
