"""Errors of the page in words: what, why and what to do, in place of the JSON that programs get."""

from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from services.gateway.errors import ApiError, as_json, request_id_of
from services.gateway.page import render
from shared.log import get_logger

log = get_logger(__name__)

TITLES = {
    400: "This cannot be done",
    403: "Not allowed",
    404: "Not found",
    429: "Too much at once",
    503: "Not available now",
}
WHAT_TO_DO = {
    400: "Go back and change what the message names.",
    403: "Load the page again and repeat what you did.",
    404: "Check the address. What belongs to another tenant looks as if it did not exist.",
    429: "Wait a moment and load the page again.",
    503: "Load the page again in a few seconds.",
}

LOGGED = "It was logged. Try again, or ask the operator, who finds the request by its id."


def wants_html(request: Request) -> bool:
    """Whether a person looks: programs name no HTML, and everything below /v1 is theirs."""
    return not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", "")


def shown(request: Request, error: ApiError) -> Response:
    """Answer with a page where a person looks, with JSON else."""
    if not wants_html(request):
        return as_json(request, error)
    if error.status == 401:
        return _to_login(request)
    body, request_id = error.body["error"], request_id_of(request)
    log.info(
        "page of an error",
        request_id=request_id,
        path=request.url.path,
        status=error.status,
        code=body["code"],
    )
    if "hx-request" in request.headers:
        of_ours = f" (request {request_id})" if error.status >= 500 else ""
        html = render.text("answer.html.jinja", message=f"{body['message']}{of_ours}", is_problem=True)
        return HTMLResponse(html, error.status, {**render.HEADERS, **error.headers})
    return render.page(
        request,
        "problem.html.jinja",
        getattr(request.state, "visitor", None),
        status=error.status,
        headers=error.headers,
        title=TITLES.get(error.status, "Something went wrong"),
        message=body["message"],
        code=body["code"],
        request_id=request_id,
        what_to_do=WHAT_TO_DO.get(
            error.status, "It was logged. Try again, or ask the operator, who finds the request by its id."
        ),
    )


def _to_login(request: Request) -> Response:
    """A part of a page that is asked for cannot be the login: the whole page goes there."""
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"hx-redirect": "/login", **render.HEADERS})
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    goes_back = request.method == "GET" and path != "/"
    return RedirectResponse(f"/login?next={quote(path)}" if goes_back else "/login", 303, render.HEADERS)
