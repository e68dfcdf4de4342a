"""Clients of all manners for the soak: those who check what they get, and those who leave, never read or send half a request."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from albatross_plugin.bench.openai_client import Endpoint, HttpError, connect, read_body, read_events, read_head, request_bytes, send
from albatross_plugin.bench.soak_models import RING_WORDS, RingModel

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATIENCE_SECONDS = 60.0
# What errors of a fault on purpose, or of its consequences, say.
FAULT_WORDS = ("was told to", "CUDA out of memory", "were told to be infinite", "the engine went down", "the engine is down")
GREEDY = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0, "ignore_eos": True}
TOOL = {"type": "function", "function": {"name": "steer", "description": "steers", "parameters": {"type": "object"}}}
BAD: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "a", "temperature": -1}),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}),
    (COMPLETIONS, {"prompt": [70000]}),
    (COMPLETIONS, {"prompt": ["a", [1]]}),
    (COMPLETIONS, {"prompt": "a", "n": 1000}),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [-1], "stream": True}),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}, "stream": True}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "wizard", "content": "a"}], "stream": True}),
    (CHAT, {"messages": "hello"}),
]


@dataclass
class Reply:
    """What one call gave: the text of each choice, and the error, in a plain answer or an event."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    whole: bool = False
    error_after: float = 0.0

    def take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
        for choice in chunk.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or choice
            text = part.get("content") or part.get("text") or ""
            self.texts[choice["index"]] = self.texts.get(choice["index"], "") + text
            if choice.get("finish_reason"):
                self.reasons[choice["index"]] = choice["finish_reason"]


@dataclass
class Scene:
    """What all clients share. ``problems`` are faults of the server, in words; ``outcomes`` counts how requests ended."""

    endpoint: Endpoint
    model: RingModel
    room: int
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    asked: int = 0
    done: int = 0
    switching: bool = False
    switches: int = 0
    faulty: bool = False
    down: bool = False
    longest_error: float = 0.0

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def prompt(self) -> tuple[list[int], int, int]:
        """(ids, ring, start): some words of a ring, the last of which is its token number ``start``."""
        ring = self.chance.randrange(len(self.model.rings))
        tokens = self.model.rings[ring]
        # No answer shall begin in the middle of a character.
        start = self.chance.randrange(RING_WORDS)
        return [self.chance.choice(tokens) for _ in range(self.chance.choice((0, 1, 5, 30, 150)))] + [tokens[start]], ring, start

    def length(self) -> int:
        return self.chance.choice((1, 2, 7, 16, 16, 40))


async def ask(
    scene: Scene, path: str, body: dict[str, Any], reply: Reply | None = None, each: Callable[[], Awaitable[None]] | None = None
) -> Reply:
    """One call read to its end. Raises HttpError, OSError, IncompleteReadError when the connection breaks.

    ``reply``: of another kind, which takes the answer in its own way. ``each`` runs after every event of a stream.
    """
    reply, loop = reply or Reply(), asyncio.get_running_loop()
    reader, writer = await send(scene.endpoint, "POST", path, body)
    try:
        reply.status, reply.headers = await read_head(reader)
        parts = read_body(reader, reply.status, reply.headers)
        if reply.status == 200 and body.get("stream"):
            last = 0.0
            async for data in read_events(parts):
                if data == b"[DONE]":
                    reply.whole = True
                    continue
                reply.take(json.loads(data))
                if reply.error is not None and last:
                    reply.error_after = loop.time() - last
                last = loop.time()
                if each is not None:
                    await each()
        else:
            reply.take(json.loads(b"".join([part async for part in parts])))
            reply.whole = reply.error is None
    finally:
        writer.close()
    return reply


async def check(scene: Scene, path: str, body: dict[str, Any], wanted: Callable[[RingModel, int], str], choices: int = 1) -> None:
    """Ask, and compare each choice's text with what its prompt must be answered, ``wanted(model, index)``."""
    model, switches, disturbed = scene.model, scene.switches, scene.switching
    reply = await ask(scene, path, body)
    # A prompt that another model answers says nothing; a call during a switch may meet either, or none.
    disturbed = disturbed or scene.switching or scene.switches != switches
    same = scene.model is model and not disturbed
    outcome = judge(scene, reply, disturbed)
    scene.outcomes[outcome] += 1
    if outcome == "unexpected":
        scene.problem(f"{path}: {reply.status} {reply.error}")
    for index, text in reply.texts.items():
        whole = wanted(model, index)
        if same and (text != whole if outcome == "answered" else not whole.startswith(text)):
            scene.problem(f"mixed text: choice {index} of {path} got {text!r} in place of {whole!r} ({outcome})")
    if outcome == "answered" and same and set(reply.texts) != set(range(choices)):
        scene.problem(f"{path}: choices {sorted(reply.texts)} of {choices}")


def judge(scene: Scene, reply: Reply, disturbed: bool) -> str:
    """How a call ended; "unexpected" for an end that no client should meet."""
    if reply.whole and reply.error is None and reply.status == 200:
        return "answered"
    if reply.error is None:
        return "unexpected"
    message = str(reply.error.get("message"))
    if reply.status == 429:
        return "queue full" if int(reply.headers.get("retry-after", 0)) >= 1 else "unexpected"
    if scene.faulty and any(words in message for words in FAULT_WORDS):
        scene.longest_error = max(scene.longest_error, reply.error_after)
        return "failed on purpose"
    if disturbed and (reply.error.get("code") in ("model_unavailable", "model_not_loaded")):
        return "unloaded"
    return "unexpected"


async def text(scene: Scene, *, stream: bool, count: int = 0, **more: Any) -> None:
    prompt, ring, start = scene.prompt()
    count = count or scene.length()
    body = {"prompt": prompt, "max_tokens": count, "stream": stream, **GREEDY, **more}
    await check(scene, COMPLETIONS, body, lambda model, _: model.text(ring, start, count), more.get("n", 1))


async def chat(scene: Scene, *, stream: bool, **more: Any) -> None:
    count = scene.length()
    messages = [{"role": "user", "content": "what now?"}]
    body = {"messages": messages, "max_tokens": count, "stream": stream, **GREEDY, **more}
    await check(scene, CHAT, body, lambda model, _: model.chat_text(count))


async def prompts(scene: Scene) -> None:
    """A list of prompts in one call."""
    many = [scene.prompt() for _ in range(3)]
    count = scene.length()
    body = {"prompt": [each[0] for each in many], "max_tokens": count, "stream": True, **GREEDY}
    await check(scene, COMPLETIONS, body, lambda model, index: model.text(*many[index][1:], count), len(many))


async def bad(scene: Scene) -> None:
    path, body = scene.chance.choice(BAD)
    disturbed = scene.switching
    reply = await ask(scene, path, body)
    refused = reply.status in (400, 413, 422) and reply.error is not None
    # Some of these are found to be bad only when a model is there with room for them.
    if refused or reply.status == 429 or (reply.status == 503 and (disturbed or scene.switching or scene.faulty)):
        scene.outcomes["refused"] += 1
    else:
        scene.problem(f"bad request {body}: {reply.status} {reply.error}")


async def leave(scene: Scene, *, stream: bool = True) -> None:
    """Leave at a random moment: before the answer begins, after some chunks, or at the end."""
    prompt, _, _ = scene.prompt()
    body = {"prompt": prompt, "max_tokens": scene.chance.choice((20, 200, 5000)), "stream": stream, **GREEDY}
    reader, writer = await send(scene.endpoint, "POST", COMPLETIONS, body)
    try:
        if stream and scene.chance.random() < 0.5:
            for _ in range(scene.chance.randrange(12)):
                if not await asyncio.wait_for(reader.read(4096), PATIENCE_SECONDS):
                    break
        else:
            await asyncio.sleep(scene.chance.expovariate(10))
    finally:
        _cut(scene, writer)
    scene.outcomes["left"] += 1


async def deaf(scene: Scene) -> None:
    """Ask for a long stream and read nothing of it."""
    prompt, _, _ = scene.prompt()
    _, writer = await send(scene.endpoint, "POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 5000, "stream": True, **GREEDY})
    # The library reads ahead of its user, the socket's buffer behind that: now nobody does.
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    try:
        await asyncio.sleep(scene.chance.uniform(0.5, 3))
    finally:
        _cut(scene, writer)
    scene.outcomes["deaf"] += 1


async def half(scene: Scene) -> None:
    """Send part of a request, perhaps wait, and go."""
    prompt, _, _ = scene.prompt()
    whole = request_bytes(scene.endpoint, "POST", COMPLETIONS, {"prompt": prompt, "stream": True})
    _, writer = await connect(scene.endpoint)
    try:
        writer.write(whole[: scene.chance.randrange(len(whole))])
        await asyncio.sleep(scene.chance.choice((0, 0.05, 1.0)))
    finally:
        _cut(scene, writer)
    scene.outcomes["half a request"] += 1


async def flood(scene: Scene) -> None:
    """More calls at once than slots and queue hold."""
    before = scene.outcomes["queue full"]
    disturbed = scene.switching
    calls = [guarded(scene, text(scene, stream=bool(number % 2), count=16)) for number in range(scene.room + 20)]
    await asyncio.gather(*calls)
    if scene.outcomes["queue full"] == before and not (disturbed or scene.switching or scene.faulty):
        scene.problem(f"{len(calls)} calls at once, and none was turned away with room for {scene.room}")


def _cut(scene: Scene, writer: asyncio.StreamWriter) -> None:
    """Close properly, or break the connection."""
    if scene.chance.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


async def guarded(scene: Scene, client: Awaitable[None]) -> None:
    """Run one client; a broken connection or a wait without end is the server's fault."""
    try:
        await asyncio.wait_for(client, PATIENCE_SECONDS)
    except asyncio.TimeoutError:
        scene.problem(f"a client waited for more than {PATIENCE_SECONDS:g} s")
    except (HttpError, OSError, asyncio.IncompleteReadError, ValueError) as error:
        scene.problem(f"{type(error).__name__}: {error}")
    scene.done += 1


Client = Callable[[Scene], Awaitable[None]]
GOOD: list[tuple[int, Client]] = [
    (12, lambda scene: text(scene, stream=True)),
    (8, lambda scene: text(scene, stream=False)),
    (2, lambda scene: text(scene, stream=True, n=3)),
    (2, lambda scene: text(scene, stream=False, n=2)),
    (2, prompts),
    (2, lambda scene: chat(scene, stream=True)),
    (2, lambda scene: chat(scene, stream=False)),
]
LEAVING: list[tuple[int, Client]] = [(10, leave), (5, lambda scene: leave(scene, stream=False))]
OTHERS: list[tuple[int, Client]] = [
    (2, lambda scene: chat(scene, stream=True, tools=[TOOL])),
    (2, lambda scene: chat(scene, stream=False, tools=[TOOL])),
    (3, bad),
    (3, half),
    (1, deaf),
]
