"""Requests that ask for a fault, their neighbours, and what came back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from faults.executor import NAME, hangs, seed
from host.live import LiveHost, wait_for

from albatross_plugin.bench.chosen_executor import strategy

# What a prompt that ends in "!" is answered with: one token after the other, and then the end of the text.
SCRIPT = [34, 1097, 47, 40640, 33944, 59, 24281]
WORDS = ["Hi", ".", "Observ", "ation", ":", "User"]
PATIENCE = 5.0


@dataclass
class Answer:
    """What a client got. ``error`` is the OpenAI-style object, of a plain answer or of an event."""

    status: int
    text: str
    error: dict[str, Any] | None
    done: bool
    seconds: float


class Faulty:
    """The host, with what tests of faults ask of it."""

    def __init__(self, live: LiveHost, model: Path) -> None:
        self.live = live
        self.model = model
        self._loaded: tuple[int, dict[str, Any]] | None = None

    def load(self, batch: int = 4, load: str | None = None, **config: Any) -> httpx.Response:
        self._loaded = None
        return self.live.switch(self.model, strategy(NAME, batch, {"load": load}, gather_ms=0.0, **config))

    def serve(self, batch: int = 4, **config: Any) -> None:
        """Load the model with these settings, unless it is there already and well."""
        if self._loaded != (batch, config) or self.engine()["phase"] != "ready":
            answer = self.load(batch, **config)
            assert answer.status_code == 200, answer.text
            self._loaded = batch, config

    def engine(self) -> dict[str, Any]:
        return dict(self.live.status()["albatross"])

    def ask(self, stream: bool = False, fault: str | None = None, token: int = 2, **more: Any) -> Answer:
        """One request; with ``fault``, the step that samples its token number ``token`` has that fault."""
        body: dict[str, Any] = {"prompt": "!", "temperature": 0, "max_tokens": 20, "stream": stream, **more}
        if fault is not None:
            body["seed"] = seed(fault, token)
        began = time.monotonic()
        reply = httpx.post(self.live.url + "/v1/completions", json=body, timeout=30)
        seconds = time.monotonic() - began
        if not stream or reply.status_code != 200:
            said = reply.json()
            text = "" if "error" in said else said["choices"][0]["text"]
            return Answer(reply.status_code, text, said.get("error"), "error" not in said, seconds)
        events = [line[len("data: ") :] for line in reply.text.split("\r\n\r\n") if line]
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks if "error" not in chunk)
        error = next((chunk["error"] for chunk in chunks if "error" in chunk), None)
        return Answer(reply.status_code, text, error, events[-1] == "[DONE]", seconds)

    def together(self, *calls: Callable[[], Answer], workers: int = 1) -> list[Answer]:
        """These calls in this order, none of which runs before all of them wait: each worker hangs in a request of its own meanwhile."""
        before = self.accepted
        holders = [partial(self.ask, False, "hang", 0, max_tokens=1)] * workers
        with ThreadPoolExecutor(workers + len(calls)) as pool:
            futures: list[Future[Answer]] = []
            for count, call in enumerate([*holders, *calls], 1):
                futures.append(pool.submit(call))
                wait_for(lambda count=count: self.accepted >= before + count)  # type: ignore[misc]
                wait_for(lambda count=count: hangs.waiting >= min(count, workers))  # type: ignore[misc]
            hangs.release()
            answers = [future.result() for future in futures]
        assert all(answer.text == WORDS[0] for answer in answers[:workers])
        return answers[workers:]

    @property
    def accepted(self) -> int:
        return int(self.engine()["requests"]["accepted"])

    def check_serves(self) -> None:
        """The next request is answered in full, and nothing is left of those before."""
        for stream in (False, True):
            good(self.ask(stream))
        status = self.engine()
        assert status["phase"] == "ready" and status["slots"]["active"] == 0 and status["queue"]["length"] == 0
        ends = status["requests"]
        assert ends["accepted"] == sum(ends[name] for name in ("stop", "length", "abort", "error"))


def good(answer: Answer) -> None:
    assert (answer.status, answer.text, answer.error, answer.done) == (200, "".join(WORDS), None, True)


def failed(answer: Answer, words: str, status: int = 500, *, stream: bool = False) -> None:
    """In time, in words, and not as a complete answer."""
    assert answer.error is not None and words in answer.error["message"], answer
    assert answer.error["type"] == "server_error"
    assert answer.seconds < PATIENCE and not answer.done
    assert answer.status == (200 if stream else status)
    # What came before the fault was right.
    assert "".join(WORDS).startswith(answer.text) and answer.text != "".join(WORDS)
