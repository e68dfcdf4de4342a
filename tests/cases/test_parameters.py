"""Every parameter of the OpenAI reference, and names of nobody: honoured, without influence, or refused by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from cases.scripts import tokens, write_script
from docs.pages import rows
from host.live import LiveHost
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel

from albatross_plugin import hooks
from albatross_plugin.errors import RequestError

Load = Callable[..., LiveHost]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
PLAIN: dict[str, Any] = {"prompt": "!", "temperature": 0}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

ACCEPTED = [
    ("user", "me"), ("metadata", {"a": "b"}), ("store", True), ("service_tier", "flex"), ("safety_identifier", "x"),
    ("prompt_cache_key", "x"), ("prompt_cache_retention", "24h"), ("prompt_cache_options", {"mode": "implicit"}), ("model", "any"),
    ("best_of", 1), ("suffix", ""), ("modalities", ["text"]), ("verbosity", "medium"), ("reasoning_effort", "none"),
    ("response_format", {"type": "text"}), ("stream_options", {"include_usage": True, "include_obfuscation": False}),
    ("functions", []), ("function_call", "auto"), ("n", 1), ("logit_bias", {}), ("logprobs", None), ("invented", None),
    ("state", ""),
]  # fmt: skip
REFUSED = [
    ("best_of", 2), ("suffix", "x"), ("modalities", ["text", "audio"]), ("audio", {"voice": "alloy", "format": "mp3"}),
    ("prediction", {"type": "content", "content": "x"}), ("web_search_options", {}), ("moderation", {"model": "x"}),
    ("verbosity", "low"), ("reasoning_effort", "high"), ("functions", [{"name": "f"}]), ("function_call", {"name": "f"}),
    ("stream_options", {"include_obfuscation": True}), ("invented", 1), ("Temperature", 0), ("repeat_penalty", 1.1),
]  # fmt: skip


@pytest.fixture
def script(load: Load, models: Path) -> LiveHost:
    return load(write_script(models / "said.pth", *tokens("Hi", ".", "All", " is", " well")))


def post(host: LiveHost, body: dict[str, Any], **more: Any) -> Any:
    return host.client.post("/v1/chat/completions" if "messages" in body else "/v1/completions", json={**body, **more})


@pytest.mark.parametrize("body", [CHAT, PLAIN], ids=["chat", "text"])
def test_parameters_without_influence_are_accepted(script: LiveHost, body: dict[str, Any]) -> None:
    plain = post(script, body).json()["choices"]
    for name, value in ACCEPTED:
        answer = post(script, body, **{name: value})
        assert answer.status_code == 200 and answer.json()["choices"] == plain, (name, answer.text)


@pytest.mark.parametrize("body", [CHAT, PLAIN], ids=["chat", "text"])
def test_api_3_parameters_that_cannot_be_honoured_are_refused_by_name(script: LiveHost, body: dict[str, Any]) -> None:
    for name, value in REFUSED:
        for stream in (False, True):
            answer = post(script, body, stream=stream, **{name: value})
            assert answer.status_code == 400, (name, answer.text)
            error = answer.json()["error"]
            assert error["param"] == name and name in error["message"] and error["type"] == "invalid_request_error"
            assert error["code"] in ("unsupported_parameter", "unknown_parameter"), error
    assert script.status()["albatross"]["slots"]["active"] == 0


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (CHAT, "echo", True), (CHAT, "prompt", "x"), (PLAIN, "messages", [1]), (PLAIN, "top_logprobs", 2), (PLAIN, "tools", [TOOL]),
        (PLAIN, "tool_choice", "auto"), (CHAT, "tool_choice", "required"), (CHAT, "tool_choice", TOOL),
        (CHAT, "tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
        (CHAT, "tools", [{"type": "custom", "custom": {"name": "f"}}]), (CHAT, "tools", {"type": "function"}),
        (CHAT, "tools", [{"type": "function", "function": {"name": "f", "strict": True}}]), (CHAT, "tools", [[TOOL]]),
    ],
)  # fmt: skip
def test_parameters_of_one_route_or_of_tools(script: LiveHost, body: dict[str, Any], name: str, value: object) -> None:
    answer = post(script, body, **{name: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(name), answer.text
    assert post(script, body, echo=False, top_logprobs=0).status_code == 200


def test_the_page_tells_what_becomes_of_every_parameter_of_the_client() -> None:
    said = {name: row[1] for row in rows("docs/http-api.md", "OpenAI's parameter") for name in re.findall(r"`(\w+)`", row[0])}
    bases = (chat_params.CompletionCreateParamsBase, text_params.CompletionCreateParamsBase)
    known = {name for base in bases for name in base.__annotations__} | {"stream"}
    assert known <= set(said), "a newer reference has more"
    refused = {name for name, _ in REFUSED} - {"stream_options"}
    assert {name for name, verdict in said.items() if verdict == "refused"} == refused & set(said)
    assert {name for name, verdict in said.items() if verdict == "accepted"} - {"parallel_tool_calls"} <= {name for name, _ in ACCEPTED}


def test_the_client_hears_the_name(script: LiveHost) -> None:
    with openai.OpenAI(base_url=script.url + "/v1", api_key="none", max_retries=0) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(model="m", extra_body={"invented": 1}, **CHAT)
        assert (refused.value.param, refused.value.code) == ("invented", "unknown_parameter")


class RunnerBody(BaseModel):
    """A request model with fewer members than the plugin knows, which drops all others, as RWKV-Runner's does."""

    prompt: str = ""
    stream: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    hosts_own: int = 5


class Slotted:
    """A body of which nothing can be listed."""

    __slots__ = ("max_tokens", "temperature")

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def ask_hook(host: LiveHost, body: Any, *, stream: bool = False, chat_mode: bool = False, stop: Any = None) -> list[Any]:
    async def read() -> list[Any]:
        source = hooks.rwkv_runner_eval(host.state.model, None, body, "!", stream, stop, None, chat_mode, {})
        return [item async for item in source]

    return asyncio.run(asyncio.wait_for(read(), 20))


@pytest.mark.parametrize("make", [RunnerBody, SimpleNamespace, Slotted, dict])
@pytest.mark.parametrize("chat_mode", [False, True])
def test_a_host_with_narrower_bodies_is_served(script: LiveHost, make: Callable[..., Any], chat_mode: bool) -> None:
    (answer,) = ask_hook(script, make(temperature=0, max_tokens=2), chat_mode=chat_mode)
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if chat_mode else choice["text"]) == "Hi."
    assert choice["finish_reason"] == "length"
    chunks = ask_hook(script, make(temperature=0, max_tokens=2), stream=True, chat_mode=chat_mode)
    assert chunks[-1] == "[DONE]" and len(chunks) == 4
    (stopped,) = ask_hook(script, make(temperature=0), stop=["."])
    assert stopped["choices"][0] == {"index": 0, "text": "Hi", "finish_reason": "stop"}


def test_a_host_without_any_body_gets_the_defaults(script: LiveHost) -> None:
    for body in (None, SimpleNamespace(), {}):
        (answer,) = ask_hook(script, body)
        assert answer["choices"][0]["text"].startswith("Hi")


def test_what_a_narrow_body_holds_is_not_dropped_in_silence(script: LiveHost) -> None:
    for body in (SimpleNamespace(best_of=2), {"best_of": 2}):
        with pytest.raises(RequestError) as refused:
            ask_hook(script, body)
        assert refused.value.param == "best_of"
    with pytest.raises(RequestError) as refused:
        ask_hook(script, {"invented": 1})
    assert refused.value.param == "invented"
    assert ask_hook(script, RunnerBody(temperature=0))[0]["choices"][0]["text"].startswith("Hi"), "a host's own members are its own affair"
