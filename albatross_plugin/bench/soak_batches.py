"""Clients of the batch routes for the soak: each item's text is checked, whether its batch is read, stopped or left half way"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from albatross_plugin.bench.openai_client import call, read_body, read_events, read_head, send
from albatross_plugin.bench.soak_clients import FAULT_WORDS, GREEDY, PATIENCE_SECONDS, Client, Reply, Scene, judge

PATH = "/albatross/batch/completions"
TRANSLATIONS = "/translate/v1/batch-translate"
FINAL = ("done", "aborted", "error")


@dataclass
class Heard:
    """What one batch has said: text, state and error by item. ``reply`` carries what was refused, or broke the whole off."""

    reply: Reply = field(default_factory=Reply)
    texts: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, told: dict[str, Any]) -> None:
        if "batch" in told:
            self.counts = told["batch"].get("counts", {})
        elif "id" not in told:
            self.reply.take(told)
        else:
            self.item(told, self.texts.get(told["id"], "") + told["delta"])

    def item(self, told: dict[str, Any], text: str) -> None:
        self.texts[told["id"]], self.states[told["id"]] = text, told["status"]
        if told["error"] is not None:
            self.errors[told["id"]] = told["error"]


async def batch(scene: Scene, *, stream: bool = True, stop: bool = False) -> None:
    """Some prompts, each of them twice. ``stop``: by a call of its own, after a few updates."""
    prompts = [scene.prompt() for _ in range(scene.chance.choice((1, 3, 8)))]
    wanted = [prompt for prompt in prompts for _ in range(2)]
    count = 2000 if stop else scene.length()
    body = {"prompt": [ids for ids, _, _ in prompts], "count": 2, "max_tokens": count, "stream": stream, **GREEDY}
    model, switches, disturbed = scene.model, scene.switches, scene.switching
    heard = await (_streamed(scene, body, scene.chance.randrange(1, 6) if stop else None) if stream else _whole(scene, body))
    disturbed = disturbed or scene.switching or scene.switches != switches
    outcome = judge(scene, heard.reply, disturbed)
    scene.outcomes[outcome if outcome != "answered" else "batch stopped" if stop else "batch"] += 1
    if outcome == "unexpected":
        scene.problem(f"{PATH}: {heard.reply.status} {heard.reply.error}")
    if outcome != "answered":
        return
    if set(heard.states) != set(range(len(wanted))) or any(state not in FINAL for state in heard.states.values()):
        scene.problem(f"a batch of {len(wanted)} ended with {heard.states}")
        return
    if sum(heard.counts.values()) != len(wanted):
        scene.problem(f"a batch of {len(wanted)} counts {heard.counts}")
    for index, said in heard.errors.items():
        if not (disturbed and said["code"] == "model_unavailable") and not (
            scene.faulty and any(words in said["message"] for words in FAULT_WORDS)
        ):
            scene.problem(f"item {index} of a batch: {said}")
    if disturbed or scene.model is not model:
        return
    for index, text in heard.texts.items():
        whole = model.text(*wanted[index][1:], count)
        if text != whole if heard.states[index] == "done" else not whole.startswith(text.removesuffix("\ufffd")):
            scene.problem(f"mixed text: item {index} of a batch got {text!r} in place of {whole!r} ({heard.states[index]})")
        if heard.states[index] == "aborted" and not stop:
            scene.problem(f"item {index} of a batch that nobody stopped was aborted")


async def _streamed(scene: Scene, body: dict[str, Any], stop_after: int | None) -> Heard:
    heard, seen = Heard(), 0
    reader, writer = await send(scene.endpoint, "POST", PATH, body)
    try:
        heard.reply.status, heard.reply.headers = await read_head(reader)
        parts = read_body(reader, heard.reply.status, heard.reply.headers)
        if heard.reply.status != 200:
            heard.reply.take(json.loads(b"".join([part async for part in parts])))
            return heard
        async for data in read_events(parts):
            if data == b"[DONE]":
                heard.reply.whole = True
                continue
            heard.take(json.loads(data))
            seen += 1
            if seen == stop_after:
                ended = await call(scene.endpoint, "DELETE", f"/albatross/batch/{heard.reply.headers['x-batch-id']}")
                if ended.status != 200:
                    scene.problem(f"a batch that runs could not be stopped: {ended.status} {ended.body[:200]!r}")
    finally:
        writer.close()
    return heard


async def _whole(scene: Scene, body: dict[str, Any]) -> Heard:
    heard = Heard()
    answer = await call(scene.endpoint, "POST", PATH, body, PATIENCE_SECONDS)
    told, heard.reply.status = json.loads(answer.body), answer.status
    if answer.status != 200:
        # A refusal tells when to come again in its headers, which this way of asking does not keep.
        heard.reply.headers = {"retry-after": "1"}
        heard.reply.take(told)
        return heard
    heard.reply.whole, heard.counts = True, told["counts"]
    for item in told["items"]:
        heard.item(item, item["text"])
    return heard


async def leave_batch(scene: Scene) -> None:
    """Begin a long one, read a little or nothing of it, and go."""
    ids, _, _ = scene.prompt()
    body = {"prompt": ids, "count": scene.chance.choice((4, 40)), "max_tokens": 2000, **GREEDY}
    reader, writer = await send(scene.endpoint, "POST", PATH, body)
    try:
        for _ in range(scene.chance.randrange(4)):
            if not await asyncio.wait_for(reader.read(4096), PATIENCE_SECONDS):
                break
    finally:
        writer.transport.abort()
    scene.outcomes["batch left"] += 1


async def translation(scene: Scene) -> None:
    """Each text has its place in the answer; what it says is not known here."""
    texts = [f"number {number}" for number in range(scene.chance.choice((1, 5)))]
    disturbed, switches = scene.switching, scene.switches
    answer = await call(scene.endpoint, "POST", TRANSLATIONS, {"target_lang": "zh", "text_list": texts}, PATIENCE_SECONDS)
    told = json.loads(answer.body)
    reply = Reply(answer.status, {"retry-after": "1"}, error=told.get("error"), whole="translations" in told)
    outcome = judge(scene, reply, disturbed or scene.switching or scene.switches != switches)
    scene.outcomes["translation" if outcome == "answered" else outcome] += 1
    if outcome == "unexpected" or (outcome == "answered" and len(told["translations"]) != len(texts)):
        scene.problem(f"{TRANSLATIONS}: {answer.status} {answer.body[:300]!r}")


BATCHES: list[tuple[int, Client]] = [
    (2, batch),
    (1, lambda scene: batch(scene, stream=False)),
    (1, lambda scene: batch(scene, stop=True)),
    (1, leave_batch),
    (1, translation),
]
