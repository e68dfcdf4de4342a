"""The host's OpenAPI document: what FastAPI makes of the routes, with the answers that guard and error handlers give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from host_stub.guard import OPEN_PATHS

Schema = dict[str, Any]
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")

ERROR: Schema = {
    "title": "Error",
    "description": "Every answer from 400 on.",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The parameter at fault."},
                "code": {"type": ["string", "null"]},
            },
        },
        "detail": {"type": "string", "description": "The message once more, for clients of RWKV-Runner."},
    },
}

REASONS: Mapping[int, str] = {
    400: "The body, a parameter or the loaded model does not allow this; `param` names what is at fault.",
    401: "The server was started with an API key, and this is not it.",
    403: "Not from this page, under this host name, or in deploy mode.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the server accepts.",
    415: "The body is not `application/json`.",
    429: "The queue is full; `Retry-After` says when to try again.",
    500: "The step failed, or the server met something unforeseen.",
    501: "This server cannot do that.",
    503: "The model was unloaded, or a worker died.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that answers with these errors beside the ones that every route has."""
    return {status: _error(status) for status in statuses}


def streamed(answer: Schema, events: str) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that gives one answer, or events where ``stream`` is true."""
    # Without a schema: what it would describe, the text or one event, differs between readers of such documents.
    stream = {"example": events}
    return {200: {"description": "The answer, whole or as a stream.", "content": {**json_content(answer), "text/event-stream": stream}}}


def answered(answer: Schema, description: str = "The answer.") -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": json_content(answer)}}


def json_content(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def describe(app: FastAPI) -> None:
    """Give ``app`` this module's document in place of FastAPI's own."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = _complete(made)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    """FastAPI believes that a bad body is a 422 in a form of its own, and knows nothing of what stands in front of the routes."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = ERROR
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                _complete_operation(item[method], open_path=path in OPEN_PATHS, reads=method == "get")
    return document


def _complete_operation(operation: dict[str, Any], *, open_path: bool, reads: bool) -> None:
    responses = operation["responses"]
    validated = responses.pop("422", None) is not None
    wanted = {403, 500} | (set() if open_path else {401}) | ({400} if validated else set()) | (set() if reads else {400, 408, 413, 415})
    for status in sorted(wanted):
        responses.setdefault(str(status), _error(status))
    operation["responses"] = dict(sorted(responses.items()))


def _error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": REASONS[status], "content": content}
