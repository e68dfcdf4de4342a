"""Calls put together at random: what a strict reader reads of a stream is what the whole answer says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.scripts import tokens, write_script
from cases.strict_sse import Choice, stream
from host.live import LiveHost

Load = Callable[..., LiveHost]
CALL = ("weather", "```", "python", "\n", "tool", "_", "call", '("', "city", '"', '="', "Paris", '")', "``", "`", " well")
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
STOPS: list[Any] = [["a"], ["e", "t"], ["\ufffd"], ["i", " "], "o", ["Paris", "thon"], None]
PROMPTS: list[Any] = ["!", "a!", ["!", "b"], [3319, 153], [[34], [3319, 153, 129, 34]], ["😀", ""]]


def any_call(source: random.Random) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"temperature": source.choice((0, 1)), "top_p": 1, "seed": source.randrange(1000)}
    body |= {"max_tokens": source.choice((1, 2, 7, 15)), "n": source.choice((1, 1, 2, 3)), "stop": source.choice(STOPS)}
    body |= {"ignore_eos": source.random() < 0.5, "stream_options": {"include_usage": source.random() < 0.5}}
    body["stop_token_ids"] = [source.randrange(65000) for _ in range(source.choice((0, 3000)))]
    if source.random() < 0.5:
        body["prompt"] = source.choice(PROMPTS)
        body |= {"echo": source.random() < 0.5, "logprobs": source.choice((None, 0, 3))}
        return "/v1/completions", body
    body["messages"] = [{"role": "user", "content": source.choice(("hi", "", "😀"))}]
    if source.random() < 0.5:
        body |= {"logprobs": True, "top_logprobs": source.choice((0, 2))}
    if source.random() < 0.5:
        body |= {"tools": TOOLS, "n": 1}
    return "/v1/chat/completions", body


def check_choice(whole: dict[str, Any], streamed: Choice) -> None:
    message = whole.get("message")
    assert streamed.text == (whole["text"] if message is None else message["content"] or "")
    assert streamed.finish_reason == whole["finish_reason"]
    calls = [call["function"] for call in (message or {}).get("tool_calls") or ()]
    assert calls == [{"name": call["name"], "arguments": call["arguments"]} for call in streamed.calls]
    numbers = whole.get("logprobs") or {}
    assert bool(numbers) == bool(streamed.logprobs)
    for name, entries in numbers.items():
        assert [entry for part in streamed.logprobs for entry in part[name]] == entries
    assert numbers.get("text_offset", []) == sorted(numbers.get("text_offset", []))


@pytest.mark.parametrize("caller", [False, True], ids=["random words", "a call"])
def test_both_modes_agree_for_any_call(load: Load, models: Path, random_model: Path, caller: bool) -> None:
    host = load(write_script(models / "call.pth", *tokens(*CALL)) if caller else random_model)
    source = random.Random(caller)
    for _ in range(14):
        path, body = any_call(source)
        answer = host.client.post(path, json=body)
        assert answer.status_code == 200, (body, answer.text)
        whole, streamed = answer.json(), stream(host.client, path, body, marks=True)
        assert len(whole["choices"]) == len(streamed.choices), body
        for choice in whole["choices"]:
            check_choice(choice, streamed.choices[choice["index"]])
        assert streamed.usage in (None, whole["usage"]), body
