"""Request bodies. Unknown members are kept (``model_extra``): a plugin may know them; the host's own paths refuse them by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from host_stub import schemas
from host_stub.config import MAX_TOKENS, ModelConfigBody
from host_stub.errors import ApiError

Name = str | None
# OpenAI's limit of ``metadata``, and what stop tokens and biased tokens may number: one for each token would cost every step.
MAX_METADATA = 16
MAX_STOP_IDS = 4096
MAX_BIASES = 4096


def _adding(members: dict[str, Any], *required: str) -> Callable[[dict[str, Any]], None]:
    """A body's schema also names ``members``, which reach the model unread, and what the routes ask for."""

    def add(schema: dict[str, Any]) -> None:
        schema["properties"] |= members
        if required:
            schema["required"] = list(required)

    return add


def neutral(value: Any, *off: Any) -> bool:
    """Whether ``value`` is unset or says one of ``off``. For Python true is 1; for the caller it is not."""
    return value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in off)


class GenerationBody(ModelConfigBody):
    """What both completion routes take. ``stop`` and ``stop_token_ids`` are checked by ``stops()`` and ``token_ids()``."""

    model_config = ConfigDict(extra="allow")

    model: str | None = "rwkv"
    max_completion_tokens: int | None = Field(None, gt=0, le=MAX_TOKENS)
    stream: StrictBool | None = False
    user: str | None = Field(None, description="Not read.")
    stop: Annotated[Any, WithJsonSchema(schemas.STOP)] = None
    stop_token_ids: Annotated[Any, WithJsonSchema(schemas.TOKEN_IDS)] = None


class ChatCompletionBody(GenerationBody):
    model_config = ConfigDict(json_schema_extra=_adding(schemas.OF_A_CHAT_MODEL, "messages"))

    messages: Annotated[Any, WithJsonSchema(schemas.MESSAGES)] = None
    tools: Annotated[Any, WithJsonSchema(schemas.TOOLS)] = None
    tool_choice: Annotated[Any, WithJsonSchema(schemas.TOOL_CHOICE)] = None
    parallel_tool_calls: StrictBool | None = Field(None, description="Both are kept: an answer holds one call at most.")
    user_name: Name = Field(None, min_length=1)
    assistant_name: Name = Field(None, min_length=1)
    system_name: Name = Field(None, min_length=1)
    presystem: StrictBool | None = Field(False, description="Put a short exchange in front of the messages.")


class CompletionBody(GenerationBody):
    model_config = ConfigDict(json_schema_extra=_adding(schemas.OF_A_TEXT_MODEL))

    prompt: Annotated[Any, WithJsonSchema(schemas.PROMPT)] = None


class EmbeddingsBody(BaseModel):
    model_config = ConfigDict(extra="allow", json_schema_extra=_adding({}, "input"))

    input: Annotated[Any, WithJsonSchema(schemas.INPUT)] = None
    model: str | None = "rwkv"
    encoding_format: Annotated[str | None, WithJsonSchema({"enum": ["float", "base64", None]})] = None
    fast_mode: StrictBool = False


class SwitchModelBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    strategy: str = ""
    tokenizer: str | None = None
    customCuda: StrictBool = False
    deploy: StrictBool = Field(False, description="After a successful load, close /switch-model and /exit for good.")


Prompt = str | list[str] | list[int] | list[list[int]]


def stops(value: Any) -> str | list[str] | None:
    """``stop`` as the hook takes it. Raises ApiError 400 unless it is null, a string or a list of strings."""
    if value is None or isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return value
    raise ApiError(400, "stop must be a string or a list of strings", param="stop")


def check_sizes(body: GenerationBody) -> None:
    """Raises ApiError 400 for lists and objects that no caller needs so large."""
    extra = body.model_extra or {}
    for name, held, most in (
        ("stop_token_ids", body.stop_token_ids, MAX_STOP_IDS),
        ("logit_bias", extra.get("logit_bias"), MAX_BIASES),
        ("metadata", extra.get("metadata"), MAX_METADATA),
    ):
        if isinstance(held, (list, dict)) and len(held) > most:
            raise ApiError(400, f"{name} may hold at most {most} entries, got {len(held)}", param=name)
    if not isinstance(extra.get("metadata"), (dict, type(None))):
        raise ApiError(400, "metadata must be an object", param="metadata")


def refuse_others(members: Mapping[str, Any] | None, known: Collection[str], where: str = "") -> None:
    """Raises ApiError 400 that names the first member that is set and that nobody here reads."""
    for name, value in (members or {}).items():
        if value is not None and name not in known:
            path = f"{where}.{name}" if where else name
            raise ApiError(400, f"unknown parameter {path!r}; it would be ignored", param=path, code="unknown_parameter")


def token_ids(value: Any) -> list[int] | None:
    if value is None or (isinstance(value, list) and all(type(item) is int for item in value)):
        return value
    raise ApiError(400, "stop_token_ids must be a list of token ids", param="stop_token_ids")


def prompts(value: Any) -> Prompt:
    """``prompt`` as the hook takes it; every empty one becomes a newline. Raises ApiError 400 for anything mixed."""
    if value is None or value in ("", []):
        return "\n"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return [item or "\n" for item in value]
        if all(type(item) is int for item in value):
            return value
        if all(isinstance(item, list) and all(type(each) is int for each in item) for item in value):
            return [item or [NEWLINE_ID] for item in value]
    raise ApiError(400, "prompt must be a string, a list of strings, a list of token ids or a list of such lists", param="prompt")


NEWLINE_ID = 11
