"""/docs: the reference as one page of plain HTML, which runs no script; `/openapi.json` is for tools."""

import base64
import hashlib
from collections.abc import Collection, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter()

Schema = Mapping[str, Any]

METHODS = ("get", "post", "put", "delete")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, summary { font-family: ui-monospace, monospace; }
details { border-top: 1px solid #ccc; padding: .4rem 0; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""
STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{STYLE_SHA256}'",
    "x-content-type-options": "nosniff",
}


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    return HTMLResponse(html(request.app.openapi()), headers=HEADERS)


def html(openapi: Schema) -> str:
    body = [f"<h1>{escape(openapi['info']['title'])}</h1>", "<h2>Routes</h2>"]
    for path, item in openapi["paths"].items():
        body += ["".join(_operation(method, path, item[method])) for method in METHODS if method in item]
    body.append("<h2>Objects</h2>")
    for name, schema in openapi["components"]["schemas"].items():
        rows = _rows(schema.get("properties", {}), required=schema.get("required", ()))
        text = escape(schema.get("description", ""))
        body.append(f'<details id="{name}"><summary>{name}</summary><p>{text}</p>{rows}</details>')
    head = f'<meta charset="utf-8"><title>retune</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>"


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<details><summary>{method.upper()} {escape(path)}</summary>"
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    parameters = {each["name"]: each["schema"] for each in operation.get("parameters", ())}
    yield _rows(
        parameters, required=[each["name"] for each in operation.get("parameters", ()) if each["required"]]
    )
    for name, content in (
        ("body", operation.get("requestBody", {})),
        ("answer", operation["responses"].get("200", {})),
    ):
        for media_type, media in content.get("content", {}).items():
            schema = media.get("schema", {})
            yield f"<p>{name}, <code>{media_type}</code>: {_type(schema)}</p>"
            yield _rows(schema.get("properties", {}), required=schema.get("required", ()))
    yield "</details>"


def _rows(properties: Schema, *, required: Collection[str]) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' (optional)'}</td>"
        f"<td>{_type(schema)}</td><td>{escape(schema.get('description', ''))}</td></tr>"
        for name, schema in properties.items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _type(schema: Schema) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>' if reference.startswith("#/components") else name
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(map(_type, choices))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(schema.get("format") or schema.get("type", "any"))
