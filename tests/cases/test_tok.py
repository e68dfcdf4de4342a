"""Stops and characters as a client sees them; what tests/serving asks already is not asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases.scripts import tokens, write_script
from cases.strict_sse import Choice, stream
from host.live import LiveHost, wait_for

from albatross_plugin.bench import chosen_executor, instant_executor
from albatross_plugin.detokenizer import Detokenizer
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary

Load = Callable[..., LiveHost]
# A chat prompt that ends in the token of "():" lets the script hold a colon of its own.
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "assistant_name": "Assistant f()"}


@pytest.fixture
def next_turn(load: Load, models: Path) -> LiveHost:
    return load(write_script(models / "turn.pth", *tokens("Hi", ".", "\n\n", "User", ":", "All"), also="():"))


def ask(host: LiveHost, path: str, body: dict[str, Any]) -> Choice:
    """Choice 0, and that a stream of it says the same."""
    whole = host.client.post(path, json=body).json()["choices"][0]
    choice = stream(host.client, path, body).choices[0]
    assert choice.text == (whole["message"]["content"] if "message" in whole else whole["text"])
    assert choice.finish_reason == whole["finish_reason"]
    return choice


def test_tok_3_nothing_of_the_next_turn_is_streamed(next_turn: LiveHost) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "!", "temperature": 0})):
        choice = ask(next_turn, path, {**body, "stop": ["\n\nUser:"]})
        assert (choice.pieces, choice.finish_reason) == (["Hi", "."], "stop")
        wait_for(lambda: next_turn.status()["albatross"]["slots"]["active"] == 0, 1)


@pytest.mark.parametrize("stop", [None, [], "", [""], ["never"], "absent"])
def test_tok_5_r21_a_chat_ends_at_the_next_turn_whatever_its_stops(next_turn: LiveHost, stop: Any) -> None:
    body = dict(CHAT) if stop == "absent" else {**CHAT, "stop": stop}
    choice = ask(next_turn, "/v1/chat/completions", body)
    assert (choice.text, choice.finish_reason) == ("Hi.", "stop")


@pytest.mark.parametrize("role", ["user_name", "assistant_name"])
def test_r21_names_of_the_callers_own_end_a_chat(load: Load, models: Path, role: str) -> None:
    host = load(write_script(models / "names.pth", *tokens("Hi", "\n\n", "Paris", ":", "All"), also="():"))
    body = {**CHAT, "stop": None}
    assert ask(host, "/v1/chat/completions", body).text == "Hi\n\nParis:All", "nobody here is called Paris"
    named = {**body, "user_name": "Paris"} if role == "user_name" else {**body, "user_name": "f()", "assistant_name": "Paris"}
    if role == "assistant_name":
        # The prompt has to end in the script's start all the same.
        named["messages"] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "f():", "prefix": True}]
    choice = ask(host, "/v1/chat/completions", named)
    assert (choice.text, choice.finish_reason) == ("Hi", "stop")


@pytest.mark.parametrize("stops", [["P", "T"], ["T", "P"], ["", "P", "TO"], ["TO", "TOP", "P"]])
def test_tok_5_r6_r7_the_earliest_match_wins_whatever_the_order(load: Load, models: Path, stops: list[str]) -> None:
    host = load(write_script(models / "stop.pth", *tokens("Hi", "STOP", ".")))
    expected = "HiSTO" if "T" not in stops and "TO" not in stops else "HiS"
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = {"prompt": "!", "temperature": 0} if path == "/v1/completions" else {**CHAT, "assistant_name": "A"}
        choice = ask(host, path, {**body, "stop": stops})
        assert (choice.text, choice.finish_reason) == (expected, "stop")
    assert ask(host, "/v1/chat/completions", {**CHAT, "assistant_name": "A", "stop": ["O"]}).text == "HiST"


def test_tok_5_r8_the_time_of_a_token_does_not_grow_with_the_text(load: Load, models: Path) -> None:
    """The Runner's search needs seconds of its loop for 20,000 tokens with its 11 stops, four times as many for twice the text."""
    host = load(write_script(models / "stop.pth", *tokens("Hi", "STOP", ".")), chosen_executor.strategy(instant_executor.NAME))
    stops = [
        "\n\nUser",
        "\n\nQuestion",
        "\n\nQ",
        "\n\nHuman",
        "\n\nBob",
        "\n\nAssistant",
        "\n\nAnswer",
        "\n\nA",
        "\n\nBot",
        "\n\nAlice",
        "\n\nOb",
    ]

    def seconds(count: int) -> float:
        began = time.process_time()
        answer = host.client.post("/v1/completions", json={"prompt": "!", "max_tokens": count, "stop": stops}).json()
        assert answer["usage"]["completion_tokens"] == count
        return time.process_time() - began

    seconds(100)
    short, long = (min(seconds(count) for _ in range(3)) for count in (5000, 20000))
    assert long < 6 * short, "four times the tokens"


def test_tok_5_r22_a_paragraph_may_begin_with_a_or_q(load: Load, models: Path) -> None:
    host = load(write_script(models / "paragraph.pth", *tokens("Hi", "\n\n", "A", " well", "\n", "Q")))
    assert ask(host, "/v1/chat/completions", {**CHAT, "assistant_name": "x"}).text == "Hi\n\nA well\nQ"
    host = load(write_script(models / "people.pth", *tokens("Hi", "\n\n", "Bob", " well", "\n", "Answer")))
    for more in ({}, {"stop": None}):
        assert ask(host, "/v1/chat/completions", {**CHAT, "assistant_name": "x", **more}).text == "Hi\n\nBob well\nAnswer", more


def test_tok_1_r3_no_emoji_and_no_ideograph_vanishes() -> None:
    world = WorldTokenizer(find_vocabulary(None))
    emoji, ideographs = range(0x1F300, 0x1F64F), range(0x4E00, 0x9FA6)
    assert (len(emoji), len(ideographs)) == (847, 20902)
    split = 0
    for code in (*emoji, *ideographs):
        ids = world.encode(chr(code))
        split += len(ids) > 1
        detokenizer = Detokenizer(world.token_bytes)
        pieces = [detokenizer.push(token) for token in ids]
        assert pieces == [""] * (len(ids) - 1) + [chr(code)]
    assert split == 840 + 12658, "so many are spread over several tokens, each of which alone is no text"
