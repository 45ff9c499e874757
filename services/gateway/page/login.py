"""Log in with an API key, log out, and the static files, which need no login."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from services.gateway import store
from services.gateway.deps import Context
from services.gateway.errors import not_found
from services.gateway.page import assets, render, sessions
from services.gateway.page.sessions import Sender

router = APIRouter()

FOR_GOOD = "public, max-age=31536000, immutable"
MAX_KEY_CHARACTERS = 256


@router.get("/login")
async def form(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002, the name that browsers' users know
    return _form(request, next)


def _form(request: Request, path: str, *, problem: str = "", status: int = 200) -> HTMLResponse:
    return render.page(
        request, "login.html.jinja", None, status=status, next=sessions.safe_path(path), problem=problem
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
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(asset.content, media_type=asset.media_type, headers=headers)
    return Response(
        asset.compressed, media_type=asset.media_type, headers={**headers, "content-encoding": "gzip"}
    )
