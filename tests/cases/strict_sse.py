"""A reader of streamed answers that accepts exactly what the OpenAI interface describes and fails on anything else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

REASONS = frozenset(("stop", "length", "tool_calls"))


class Deviation(AssertionError):
    """The stream is not what a strict client may rely on."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Deviation(what)


class SseReader:
    """Bytes in, the data of each event out. Framing: one ``data`` field an event, CRLF or LF throughout, UTF-8, no BOM."""

    def __init__(self) -> None:
        self._rest = b""
        self._ending: bytes | None = None
        self.events: list[str] = []

    def feed(self, data: bytes) -> None:
        check(self.events[-1:] != ["[DONE]"] or not data, "bytes after [DONE]")
        self._rest += data
        while True:
            ends = [(at, mark) for mark in (b"\r\n\r\n", b"\n\n") if (at := self._rest.find(mark)) >= 0]
            if not ends:
                return
            at, mark = min(ends)
            check(self._ending in (None, mark), "line endings are mixed")
            self._ending = mark
            event, self._rest = self._rest[:at], self._rest[at + len(mark) :]
            self.events.append(self._data(event))
            check(self.events[-1] != "[DONE]" or not self._rest, "bytes after [DONE]")

    def _data(self, event: bytes) -> str:
        check(b"\n" not in event and b"\r" not in event, f"more than one field in {event!r}")
        check(event.startswith(b"data: "), f"not a data field: {event!r}")
        try:
            return event[6:].decode()
        except UnicodeDecodeError:
            raise Deviation(f"not UTF-8: {event!r}") from None

    def close(self) -> None:
        check(self._rest == b"", f"the stream ends inside an event: {self._rest!r}")


@dataclass
class Choice:
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    chunks: int = 0


@dataclass
class Answer:
    """``error``: the error object that ended the stream in place of ``[DONE]``."""

    chat: bool
    marks: bool = False
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    error: dict[str, Any] | None = None
    head: tuple[Any, ...] = ()


def parse(events: list[str], *, chat: bool, usage: bool, marks: bool = False) -> Answer:
    """Check every event of one answer. ``usage``: whether ``stream_options.include_usage`` was true.

    ``marks``: U+FFFD may come; a model with random weights says bytes that are no character.
    """
    check(events, "no event at all")
    answer = Answer(chat, marks=marks)
    whole = events[-1] == "[DONE]"
    for event in events[:-1] if whole else events:
        check(answer.error is None, "an event after an error")
        _take(answer, event, usage)
    check(whole != (answer.error is not None), "an answer ends with [DONE] or with an error, not with both or none")
    if whole:
        check(answer.choices, "no choice")
        check(sorted(answer.choices) == list(range(len(answer.choices))), "indexes are not 0, 1, 2, ...")
        check(all(choice.finish_reason for choice in answer.choices.values()), "a choice without a reason")
        check((answer.usage is not None) == usage, "usage asked for and not sent, or the other way round")
    return answer


def _take(answer: Answer, event: str, usage: bool) -> None:
    try:
        chunk = json.loads(event)
    except ValueError:
        raise Deviation(f"not JSON: {event!r}") from None
    if "error" in chunk:
        check(set(chunk) == {"error"} and {"message", "type", "param", "code"} == set(chunk["error"]), f"shape of an error: {event}")
        answer.error = chunk["error"]
        return
    kind = "chat.completion.chunk" if answer.chat else "text_completion"
    check(chunk.get("object") == kind, f"object of {event}")
    check(isinstance(chunk.get("id"), str) and chunk["id"], f"id of {event}")
    check(type(chunk.get("created")) is int and chunk["created"] > 10**9, f"created of {event}")
    check(isinstance(chunk.get("model"), str) and chunk["model"], f"model of {event}")
    head = (chunk["id"], chunk["created"], chunk["model"])
    check(answer.head in ((), head), "id, created or model change within an answer")
    answer.head = head
    check(answer.usage is None, "a chunk after the usage")
    check(isinstance(chunk.get("choices"), list), f"choices of {event}")
    if not chunk["choices"]:
        check(usage and chunk.get("usage"), f"a chunk without choices and without usage: {event}")
        answer.usage = chunk["usage"]
        check(_whole(answer.usage), f"counts in {event}")
        check(all(choice.finish_reason for choice in answer.choices.values()), "usage before the last choice has ended")
        return
    check(("usage" in chunk) == usage and chunk.get("usage") is None, f"usage of a chunk with choices: {event}")
    check(len(chunk["choices"]) == 1, f"more than one choice in {event}")
    _add(answer, chunk["choices"][0], event)


def _whole(usage: dict[str, Any]) -> bool:
    numbers = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    return all(type(number) is int and number >= 0 for number in numbers) and numbers[0] + numbers[1] == numbers[2]  # type: ignore[operator]


def _add(answer: Answer, part: dict[str, Any], event: str) -> None:
    check(type(part.get("index")) is int, f"index of {event}")
    check("finish_reason" in part and (part["finish_reason"] is None or part["finish_reason"] in REASONS), f"finish_reason of {event}")
    choice = answer.choices.setdefault(part["index"], Choice())
    check(choice.finish_reason is None, f"a chunk after the end of its choice: {event}")
    choice.chunks += 1
    choice.finish_reason = part["finish_reason"]
    if answer.chat:
        text = _delta(choice, part, event)
    else:
        check(isinstance(part.get("text"), str), f"text of {event}")
        text = part["text"]
    check(answer.marks or "\ufffd" not in text, f"half a character in {event}")
    if text:
        choice.pieces.append(text)
        choice.text += text
    if part.get("logprobs") is not None:
        choice.logprobs.append(part["logprobs"])


def _delta(choice: Choice, part: dict[str, Any], event: str) -> str:
    delta = part.get("delta")
    check(isinstance(delta, dict) and set(delta) <= {"role", "content", "tool_calls", "refusal"}, f"delta of {event}")
    first = choice.chunks == 1
    check(delta.get("role") == "assistant" if first else "role" not in delta, f"the role is not in the first chunk alone: {event}")
    for call in delta.get("tool_calls") or ():
        check(type(call.get("index")) is int and call["index"] <= len(choice.calls), f"index of a call in {event}")
        if call["index"] == len(choice.calls):
            check(call.get("id") and call.get("type") == "function" and call["function"].get("name"), f"head of a call in {event}")
            choice.calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
        else:
            check("id" not in call and "name" not in call["function"], f"a call's head is told twice: {event}")
        choice.calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
    text = delta.get("content")
    check(text is None or isinstance(text, str), f"content of {event}")
    return text or ""


def stream(client: httpx.Client, path: str, body: dict[str, Any], *, marks: bool = False) -> Answer:
    """POST ``body`` as a stream and read its answer strictly, as the bytes come."""
    reader = SseReader()
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        check(response.status_code == 200, f"status {response.status_code}")
        check(response.headers["content-type"].split(";")[0] == "text/event-stream", "content type")
        for data in response.iter_raw():
            reader.feed(data)
    reader.close()
    wanted = bool((body.get("stream_options") or {}).get("include_usage"))
    return parse(reader.events, chat="chat" in path, usage=wanted, marks=marks)
