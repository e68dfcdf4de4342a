"""What the OpenAPI document says of the batch routes"""

from __future__ import annotations

from typing import Any

from albatross_plugin.serving.batch_call import BATCH_ID, MAX_ITEMS, MAX_SEED, MIN_SEED

Responses = dict[int | str, dict[str, Any]]

_ID: dict[str, Any] = {"type": "integer", "minimum": 0}
_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": _ID}
_PROMPT = {"anyOf": [{"type": "string"}, _IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _IDS]}}]}
_SEED = {"minimum": MIN_SEED, "maximum": MAX_SEED}
_NUMBER = {"type": ["number", "null"]}
_BATCH: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "status", "counts"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "albatross.batch"},
        "status": {"enum": ["running", "done", "aborted"]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "status", "text", "tokens", "finish_reason", "error", "seed"],
                "properties": {"status": {"enum": ["done", "aborted", "error"]}, "text": {"type": "string"}},
            },
        },
    },
}
_TRANSLATED: dict[str, Any] = {
    "type": "object",
    "required": ["translations"],
    "properties": {
        "translations": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["detected_source_lang", "text"],
                "properties": {"detected_source_lang": {"type": "string"}, "text": {"type": "string"}},
            },
        }
    },
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": _json(schema)}}


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error", "detail"],
    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"]}, "detail": {"type": "string"}},
}
_REASONS = {
    400: "The body, a parameter or the loaded model does not allow this; `param` names what is at fault.",
    404: "There is no such batch.",
    408: "The body did not arrive in time.",
    409: "There has been a batch of this name already.",
    413: "The body is larger than 16 MiB.",
    415: "The body is not `application/json`.",
    429: "The queue is full, or too many batches run; `Retry-After` says when to try again.",
    500: "The step failed.",
    503: "The model is being loaded, or was unloaded.",
}


def _errors(*statuses: int) -> Responses:
    return {status: {"description": _REASONS[status], "content": _json(_ERROR)} for status in statuses}


BATCH_BODY = _body(
    {
        "title": "BatchCompletionBody",
        "type": "object",
        "required": ["prompt"],
        "properties": {
            "prompt": _PROMPT,
            "count": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ITEMS},
            "seed": {"type": ["integer", "null"], **_SEED},
            "seeds": {"type": ["array", "null"], "items": {"type": "integer", **_SEED}},
            "stream": {"type": ["boolean", "null"], "default": True},
            "batch_id": {"type": ["string", "null"], "pattern": f"^{BATCH_ID.pattern}$"},
            "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 10_000_000},
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "top_k": {"type": ["integer", "null"]},
            "presence_penalty": _NUMBER,
            "frequency_penalty": _NUMBER,
            "penalty_decay": _NUMBER,
            "stop": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
            "ignore_eos": {"type": ["boolean", "null"]},
            "priority": {"type": ["integer", "null"]},
        },
    }
)
_EVENTS = (
    'data: {"batch":{"id":"batch-1","object":"albatross.batch","created":1790000000,"model":"model","count":1,"status":"running"}}\r\n\r\n'
    'data: {"id":0,"status":"done","delta":" there was","tokens":2,"finish_reason":"length","error":null,"seed":7}\r\n\r\n'
    'data: {"batch":{"id":"batch-1","object":"albatross.batch","status":"done","counts":{"done":1,"aborted":0,"error":0}}}\r\n\r\n'
    "data: [DONE]\r\n\r\n"
)
ANSWERS: Responses = {
    200: {"description": "The items' news, or all of them.", "content": {**_json(_BATCH), "text/event-stream": {"example": _EVENTS}}},
    **_errors(400, 408, 409, 413, 415, 429, 503),
}
ENDED: Responses = {200: {"description": "How the batch stands.", "content": _json(_BATCH)}, **_errors(404)}
STATUS: Responses = {
    200: {
        "description": "The engine.",
        "content": _json(
            {
                "type": "object",
                "required": ["model", "state", "engine", "batches", "version"],
                "properties": {"model": {"type": ["string", "null"]}, "state": {"type": "string"}, "engine": {"type": ["object", "null"]}},
            }
        ),
    }
}
TRANSLATE_BODY = _body(
    {
        "title": "BatchTranslateBody",
        "type": "object",
        "required": ["target_lang", "text_list"],
        "properties": {
            "source_lang": {"type": ["string", "null"], "description": "A code or an English name; `auto` or nothing: by the script."},
            "target_lang": {"type": "string"},
            "text_list": {"type": "array", "maxItems": MAX_ITEMS, "items": {"type": "string"}},
        },
        "additionalProperties": False,
    }
)
TRANSLATIONS: Responses = {
    200: {"description": "A translation for each text.", "content": _json(_TRANSLATED)},
    **_errors(400, 408, 413, 415, 429, 500, 503),
}
