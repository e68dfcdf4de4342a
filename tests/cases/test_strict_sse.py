"""The strict reader itself: it accepts a right stream and fails on each deviation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases.strict_sse import Deviation, SseReader, parse

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "m"}


def chunk(delta: Any, reason: str | None = None, index: int = 0, **more: Any) -> str:
    return json.dumps({**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": reason}], **more}, ensure_ascii=False)


FIRST, NEXT, END = chunk({"role": "assistant", "content": "a"}), chunk({"content": "ü"}), chunk({}, "stop")
ERROR = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": None}})
USAGE = json.dumps({**HEAD, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}})


def with_null(event: str) -> str:
    return json.dumps({**json.loads(event), "usage": None})


def read(data: bytes, size: int) -> list[str]:
    reader = SseReader()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.close()
    return reader.events


@pytest.mark.parametrize("ending", ["\r\n\r\n", "\n\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10**6])
def test_a_right_stream_is_read_however_it_is_cut(ending: str, size: int) -> None:
    events = [FIRST, NEXT, END, "[DONE]"]
    data = "".join(f"data: {event}{ending}" for event in events).encode()
    assert read(data, size) == events
    answer = parse(events, chat=True, usage=False)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("aü", "stop")


def test_usage_and_errors_have_their_places() -> None:
    events = [*map(with_null, (FIRST, NEXT, END)), USAGE, "[DONE]"]
    assert parse(events, chat=True, usage=True).usage == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert parse([FIRST, ERROR], chat=True, usage=False).error is not None


@pytest.mark.parametrize(
    "data",
    [
        b"data: a\r\n\r\ndata: b\n\n", b"event: x\ndata: a\n\n", b": note\n\n", b"data:a\n\n", b"data: \xff\n\n", b"data: a\n",
        b"data: [DONE]\n\n\n", b"data: [DONE]\n\ndata: [DONE]\n\n", b"\xef\xbb\xbfdata: a\n\n", b"data: a\ndata: b\n\n",
    ],
)  # fmt: skip
def test_wrong_frames(data: bytes) -> None:
    with pytest.raises(Deviation):
        read(data, 3)


@pytest.mark.parametrize(
    "events",
    [
        [], ["[DONE]"], [FIRST, END], [FIRST, "[DONE]"], ["{", "[DONE]"], [NEXT, END, "[DONE]"], [FIRST, FIRST, END, "[DONE]"],
        [FIRST, END, END, "[DONE]"], [FIRST, END, NEXT, "[DONE]"], [FIRST, chunk({}, "abort"), "[DONE]"], [FIRST, END, USAGE, "[DONE]"],
        [FIRST, chunk({"content": "\ufffd"}), END, "[DONE]"], [FIRST, chunk({}, "stop", id="d"), "[DONE]"], [FIRST, ERROR, "[DONE]"],
        [FIRST, ERROR, END], [FIRST, with_null(END), "[DONE]"], [chunk({"role": "assistant"}, "stop", 1), "[DONE]"],
        [FIRST, chunk({}, "stop", object="text_completion"), "[DONE]"], [FIRST, chunk({}, "stop", created=1.5), "[DONE]"],
        [FIRST, chunk({}, "stop", model=""), "[DONE]"], [FIRST, chunk({"text": "x"}), END, "[DONE]"],
    ],
)  # fmt: skip
def test_wrong_answers(events: list[str]) -> None:
    with pytest.raises(Deviation):
        parse(events, chat=True, usage=False)


@pytest.mark.parametrize(
    "events", [[FIRST, END], [with_null(FIRST), USAGE, with_null(END)], [with_null(FIRST), with_null(END), USAGE, USAGE]]
)
def test_wrong_places_of_usage(events: list[str]) -> None:
    with pytest.raises(Deviation):
        parse([*events, "[DONE]"], chat=True, usage=True)
