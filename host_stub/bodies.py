"""Request bodies. Unknown members are kept (``model_extra``): a plugin may know them; the host's own paths refuse them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from host_stub import schemas
from host_stub.config import ModelConfigBody
from host_stub.errors import ApiError

DEFAULT_STOPS = (
    "\n\nUser", "\n\nQuestion", "\n\nHuman", "\n\nBob", "\n\nAssistant", "\n\nAnswer", "\n\nBot", "\n\nAlice", "\n\nObservation",
)  # fmt: skip
Name = str | None


def _adding(members: dict[str, Any], *required: str) -> Callable[[dict[str, Any]], None]:
    """A body's schema also names ``members``, which reach the model unread, and what the routes ask for."""

    def add(schema: dict[str, Any]) -> None:
        schema["properties"] |= members
        if required:
            schema["required"] = list(required)

    return add


class GenerationBody(ModelConfigBody):
    """What both completion routes take. ``stop`` and ``stop_token_ids`` are checked by ``stops()`` and ``token_ids()``."""

    model_config = ConfigDict(extra="allow")

    model: str | None = "rwkv"
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
