"""Templates as answers: with every header that a page needs, and with what each layout shows."""

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from services.gateway.page import assets, formats, views
from services.gateway.page.sessions import Visitor

TEMPLATES = Path(__file__).parent / "templates"
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""`no-referrer` would take the origin from our own forms, by which another site's are known."""
THEMES = ("light", "dark")
THEME_COOKIE = "retune_theme"


@cache
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= formats.FILTERS
    env.globals |= {"asset": assets.address, "levels": views.LEVELS}
    return env


def text(template: str, **values: Any) -> str:
    return environment().get_template(template).render(values)


def numbers(request: Request, values: Mapping[str, Any]) -> Response:
    """Answer numbers to be drawn, compressed where the browser takes it. Pages are not: beside what somebody else may
    have chosen they have a form's secret, which the size of a compressed answer would give away."""
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    answer = JSONResponse(values, headers=headers)
    if not takes_gzip(request):
        return answer
    content, headers["content-encoding"] = gzip.compress(bytes(answer.body)), "gzip"
    return Response(content, headers=headers, media_type=answer.media_type)


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def page(
    request: Request,
    template: str,
    visitor: Visitor | None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """Answer a whole page. `visitor`: None where nobody has logged in."""
    theme = request.cookies.get(THEME_COOKIE, "")
    layout = {
        "visitor": visitor,
        "theme": theme if theme in THEMES else "",
        "path": request.url.path,
        "has_scripts": assets.are_scripts_there(),
    }
    return HTMLResponse(text(template, **layout, **values), status, {**HEADERS, **(headers or {})})


def answer(request: Request, message: str, *, back: str) -> Response:
    """Say what a form has asked for: in the page, or without scripts by the page at `back`."""
    if "hx-request" not in request.headers:
        return RedirectResponse(back, 303, HEADERS)
    return HTMLResponse(text("answer.html.jinja", message=message), headers=HEADERS)
