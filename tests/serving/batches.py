"""What a client makes of a batch: the events of its stream, and each item put together again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from cases.strict_sse import SseReader

PATH = "/albatross/batch/completions"
FINAL = {"done", "aborted", "error"}
KEYS = {"id", "status", "delta", "tokens", "finish_reason", "error"}


@dataclass
class Read:
    """One item. ``states`` are those that were told, without repeats."""

    text: str = ""
    tokens: int = 0
    states: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    seed: int | None = None


@dataclass
class Stream:
    """What has come so far, every rule of docs/batch.md checked on the way. ``parts``: updates that came in one piece of bytes."""

    head: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    over: bool = False
    items: dict[int, Read] = field(default_factory=dict)
    reader: SseReader = field(default_factory=SseReader)
    comments: int = 0
    _seen: int = 0

    def feed(self, data: bytes) -> None:
        kept = data.replace(b": still here\r\n\r\n", b"")
        self.comments += kept != data
        self.reader.feed(kept)
        for event in self.reader.events[self._seen :]:
            self._take(event)
        self._seen = len(self.reader.events)

    def _take(self, event: str) -> None:
        assert not self.over
        if event == "[DONE]":
            assert self.end is not None
            self.over = True
            return
        said = json.loads(event)
        if "batch" in said:
            if not self.head:
                self.head = said["batch"]
                assert self.head["status"] == "running"
            else:
                self.end = said["batch"]
            return
        assert self.head and self.end is None
        self._update(said)

    def _update(self, said: dict[str, Any]) -> None:
        item = self.items.setdefault(said["id"], Read())
        first = not item.states
        assert set(said) == KEYS | ({"seed"} if first else set()), said
        assert not FINAL & set(item.states), "nothing follows a final state"
        assert said["tokens"] >= item.tokens
        assert (said["finish_reason"] is None) == (said["status"] in ("running", "error"))
        assert (said["error"] is None) == (said["status"] != "error")
        if first:
            item.seed = said["seed"]
        if item.states[-1:] != [said["status"]]:
            item.states.append(said["status"])
        item.text += said["delta"]
        item.tokens, item.finish_reason, item.error = said["tokens"], said["finish_reason"], said["error"]

    def count(self, state: str) -> int:
        return sum(item.states[-1] == state for item in self.items.values())

    def check_end(self) -> None:
        """Every item has ended, and the batch's own figures say the same."""
        assert self.over and self.end is not None
        assert sorted(self.items) == list(range(self.head["count"]))
        assert self.end["counts"] == {state: self.count(state) for state in ("done", "aborted", "error")}
        assert self.end["usage"]["completion_tokens"] == sum(item.tokens for item in self.items.values())
        assert {name: self.end[name] for name in ("id", "object", "created", "model", "count")} == {
            name: self.head[name] for name in ("id", "object", "created", "model", "count")
        }


@contextmanager
def begun(client: httpx.Client, body: dict[str, Any]) -> Iterator[tuple[Stream, Iterator[bytes]]]:
    """A batch that runs, and the pieces of bytes that are still to come."""
    with client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        stream, parts = Stream(), response.iter_raw()
        stream.feed(next(parts))
        assert response.headers["x-batch-id"] == stream.head["id"]
        yield stream, parts


def streamed(client: httpx.Client, body: dict[str, Any]) -> Stream:
    """A whole batch."""
    with begun(client, body) as (stream, parts):
        for part in parts:
            stream.feed(part)
    stream.check_end()
    return stream


def whole(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(PATH, json={**body, "stream": False})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())
