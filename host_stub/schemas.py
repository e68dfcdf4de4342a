"""JSON schemas of bodies and answers that the code checks by hand, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def record(required: Schema, **optional: Schema) -> Schema:
    """An object with these members; others may be there too."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 65535}
STRINGS = list_of(STRING)

# --- requests -------------------------------------------------------------------------------------------------------

TEXT_PART = record({"type": {"const": "text"}, "text": STRING})
CONTENT: Schema = {"anyOf": [STRING, list_of(TEXT_PART)]}
TOOL_CALL = record({"function": record({"name": STRING, "arguments": {"type": "string", "description": "A JSON object, as text."}})})
MESSAGE: Schema = {
    "anyOf": [
        record({"role": {"enum": ["system", "developer", "user", "tool"]}, "content": CONTENT}),
        record({"role": {"const": "assistant"}}, content=nullable(CONTENT), tool_calls=nullable(list_of(TOOL_CALL)), prefix=BOOLEAN),
    ]
}
MESSAGES = list_of(MESSAGE, minItems=1)
TOOLS = nullable(list_of(record({"function": record({"name": STRING})}, type={"const": "function"})))
_NAMED = record({"type": {"const": "function"}, "function": record({"name": STRING})})
TOOL_CHOICE = nullable({"anyOf": [{"enum": ["auto", "none"]}, _NAMED]})
STOP = nullable({"anyOf": [STRING, list_of(STRING, maxItems=1024)]})
TOKEN_IDS = nullable(list_of(TOKEN_ID, maxItems=4096))
PROMPT = nullable({"anyOf": [STRING, STRINGS, list_of(TOKEN_ID), list_of(list_of(TOKEN_ID))]})
INPUT: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        list_of({"type": "string", "minLength": 1}, minItems=1),
        list_of(TOKEN_ID, minItems=1),
        list_of(list_of(TOKEN_ID, minItems=1), minItems=1),
    ]
}

# What a model may understand beside the members that the host itself reads. One that it does not is a 400 with its name.
_OF_A_MODEL: Schema = {
    "seed": nullable(WHOLE),
    "n": nullable({"type": "integer", "minimum": 1, "maximum": 128}),
    "priority": nullable({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
    "ignore_eos": nullable(BOOLEAN),
    "metadata": nullable({"type": "object", "maxProperties": 16}),
    "stream_options": nullable({**record({}, include_usage=nullable(BOOLEAN)), "additionalProperties": False}),
    "response_format": nullable(record({"type": {"enum": ["text", "json_object", "json_schema"]}})),
    "logit_bias": nullable(
        {
            "type": "object",
            "maxProperties": 4096,
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
}
_TOP: Schema = {"type": "integer", "minimum": 0, "maximum": 20}
OF_A_CHAT_MODEL: Schema = {**_OF_A_MODEL, "logprobs": nullable(BOOLEAN), "top_logprobs": nullable(_TOP)}
OF_A_TEXT_MODEL: Schema = {**_OF_A_MODEL, "logprobs": nullable({"anyOf": [_TOP, {"const": False}]}), "echo": nullable(BOOLEAN)}

# --- answers --------------------------------------------------------------------------------------------------------

COUNT: Schema = {"type": "integer", "minimum": 0}
USAGE = record({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
REASON: Schema = {"enum": ["stop", "length", "tool_calls", "abort"]}
_HEAD: Schema = {"id": STRING, "created": WHOLE, "model": STRING, "usage": USAGE}
_CHOICE: Schema = {"index": COUNT, "finish_reason": REASON}
_ASSISTANT = record({"role": {"const": "assistant"}, "content": nullable(STRING)}, tool_calls=list_of(TOOL_CALL))
CHAT_ANSWER = record({**_HEAD, "object": {"const": "chat.completion"}, "choices": list_of(record({**_CHOICE, "message": _ASSISTANT}))})
TEXT_ANSWER = record({**_HEAD, "object": {"const": "text_completion"}, "choices": list_of(record({**_CHOICE, "text": STRING}))})
_VECTOR: Schema = {"anyOf": [list_of({"type": "number"}), {"type": "string", "description": "base64 of float32, little-endian"}]}
EMBEDDINGS = record(
    {
        "object": {"const": "list"},
        "data": list_of(record({"object": {"const": "embedding"}, "index": COUNT, "embedding": _VECTOR})),
        "model": STRING,
        "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
MODEL = record({"id": STRING, "object": {"const": "model"}, "created": WHOLE, "owned_by": STRING})
MODELS = record({"object": {"const": "list"}, "data": list_of(MODEL)})
HEALTH = record({"status": {"const": "ok"}, "model": nullable(STRING), "model_status": {"enum": ["offline", "loading", "working"]}})
STATUS = record({"status": {"enum": [0, 2, 3]}, "pid": WHOLE, "device_name": STRING, "model": nullable(STRING), "deploy": BOOLEAN})
SUCCESS: Schema = {"const": "success"}
CHAT_EVENTS = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n'
TEXT_EVENTS = 'data: {"id":"cmpl-1","object":"text_completion","choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n'
