"""What the host makes of a body: any JSON gives a prompt, or a refusal that names what is wrong with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

pytest.importorskip("fastapi")

from fuzz.anything import ANYTHING, TEXTS
from host.live import LiveHost
from host.word_plugin import WordModel, WordPlugin
from hypothesis import given, settings
from hypothesis import strategies as st

from host_stub import bodies, tools
from host_stub.bodies import ChatCompletionBody
from host_stub.errors import ApiError
from host_stub.template import chat_prompt, check_messages

PART = st.dictionaries(st.sampled_from(["type", "text", "x"]), st.one_of(st.just("text"), ANYTHING), max_size=3)
CALL = st.fixed_dictionaries(
    {}, optional={"function": st.fixed_dictionaries({}, optional={"name": ANYTHING, "arguments": st.one_of(st.just('{"a": 1}'), ANYTHING)})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.one_of(st.sampled_from(["user", "assistant", "tool", "system", "developer"]), ANYTHING)},
    optional={
        "content": st.one_of(TEXTS, st.lists(PART, max_size=2), ANYTHING),
        "tool_calls": st.one_of(st.lists(CALL, max_size=2), ANYTHING),
        "prefix": ANYTHING,
        "tool_call_id": ANYTHING,
    },
)
TOOL = st.fixed_dictionaries({}, optional={"type": ANYTHING, "function": st.one_of(st.fixed_dictionaries({"name": ANYTHING}), ANYTHING)})
TOOLS = st.one_of(st.lists(TOOL, max_size=2), ANYTHING)
CHOICE = st.one_of(st.sampled_from(["auto", "none", "required"]), TOOL, ANYTHING)


@settings(max_examples=500, deadline=None, database=None)
@given(messages=st.one_of(st.lists(MESSAGE, max_size=3), ANYTHING), offered=TOOLS, choice=CHOICE, presystem=st.booleans())
def test_any_messages_and_tools(messages: Any, offered: Any, choice: Any, presystem: bool) -> None:
    body = ChatCompletionBody(messages=messages, tools=offered, tool_choice=choice, presystem=presystem)
    try:
        checked = check_messages(body.messages)
        prompt = chat_prompt(body, checked, "User", "Assistant", ":")
        use = tools.tool_use(body, checked, tools.ToolMemory())
    except ApiError as error:
        assert error.status == 400 and error.message and error.param and error.code
        return
    assert isinstance(prompt, str) and len(checked) == len(messages) >= 1
    assert use is None or isinstance(use.prompt(prompt, ":"), str)


@pytest.mark.parametrize(("read", "name"), [(bodies.stops, "stop"), (bodies.token_ids, "stop_token_ids"), (bodies.prompts, "prompt")])
@settings(max_examples=200, deadline=None, database=None)
@given(value=ANYTHING)
def test_any_stops_ids_and_prompts(read: Callable[[Any], Any], name: str, value: Any) -> None:
    try:
        read(value)
    except ApiError as error:
        assert (error.status, error.param) == (400, name)


class WatchedModel(WordModel):
    """Notes which thread asks for what a prompt is made of."""

    seen: ClassVar[list[str]] = []

    @property
    def interface(self) -> str:
        self.seen.append(threading.current_thread().name)
        return ":"


def test_a_chat_of_twenty_thousand_messages_is_put_together_off_the_event_loop() -> None:
    with LiveHost(("words", WordPlugin())) as host:
        assert host.switch("any.pth", "words").status_code == 200
        host.state.model.__class__ = WatchedModel
        for count in (1, 20_000):
            WatchedModel.seen.clear()
            messages = [{"role": "user", "content": f"message {index}"} for index in range(count)]
            answer = host.client.post("/v1/chat/completions", json={"messages": messages, "say": "x", "max_tokens": 2})
            assert answer.status_code == 200, answer.text
            assert (WatchedModel.seen[0] == "live-host") == (count == 1), WatchedModel.seen
