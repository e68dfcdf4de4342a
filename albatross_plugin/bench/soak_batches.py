"""Clients of the batch routes for the soak: each item's text is checked, whether its batch is read, stopped or left half way"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from albatross_plugin.bench.http_benchmark import BATCH_PATH
from albatross_plugin.bench.openai_client import call, send
from albatross_plugin.bench.soak_clients import FAULT_WORDS, GREEDY, PATIENCE_SECONDS, Client, Reply, Scene, ask, judge
from albatross_plugin.serving.batch_item import FINAL

TRANSLATIONS = "/translate/v1/batch-translate"


@dataclass
class BatchReply(Reply):
    """What one batch has said: of each item its text, in ``texts``, its state and its error."""

    states: dict[int, str] = field(default_factory=dict)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, chunk: dict[str, Any]) -> None:
        summary = chunk.get("batch", chunk)
        self.counts = summary.get("counts", self.counts)
        if "id" in chunk and "counts" not in chunk:
            self.item(chunk, self.texts.get(chunk["id"], "") + chunk["delta"])
        elif "error" in chunk:
            self.error = chunk["error"]
        for item in chunk.get("items", ()):
            self.item(item, item["text"])

    def item(self, told: dict[str, Any], text: str) -> None:
        self.texts[told["id"]], self.states[told["id"]] = text, told["status"]
        if told["error"] is not None:
            self.errors[told["id"]] = told["error"]


@dataclass
class TranslationReply(Reply):
    translations: list[Any] = field(default_factory=list)

    def take(self, chunk: dict[str, Any]) -> None:
        super().take(chunk)
        self.translations = chunk.get("translations", [])


async def batch(scene: Scene, *, stream: bool = True, stop: bool = False) -> None:
    """Some prompts, each of them twice. ``stop``: by a call of its own, after a few updates."""
    prompts = [scene.prompt() for _ in range(scene.chance.choice((1, 3, 8)))]
    wanted = [prompt for prompt in prompts for _ in range(2)]
    count = 2000 if stop else scene.length()
    body = {"prompt": [ids for ids, _, _ in prompts], "count": 2, "max_tokens": count, "stream": stream, **GREEDY}
    model, switches, disturbed = scene.model, scene.switches, scene.switching
    heard, left = BatchReply(), scene.chance.randrange(1, 6) if stop else 0

    async def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            await _stop(scene, heard)

    await ask(scene, BATCH_PATH, body, heard, count_down)
    disturbed = disturbed or scene.switching or scene.switches != switches
    outcome = judge(scene, heard, disturbed)
    scene.outcomes[outcome if outcome != "answered" else "batch stopped" if stop else "batch"] += 1
    if outcome == "unexpected":
        scene.problem(f"{BATCH_PATH}: {heard.status} {heard.error}")
    if outcome == "answered" and _is_complete(scene, heard, len(wanted), disturbed) and not disturbed and scene.model is model:
        _compare(scene, heard, [model.text(ring, start, count) for _, ring, start in wanted], stopped=stop)


def _is_complete(scene: Scene, heard: BatchReply, count: int, disturbed: bool) -> bool:
    """Whether each of ``count`` items has its end. Notes what is wrong with them and with the counts."""
    if set(heard.states) != set(range(count)) or any(state not in FINAL for state in heard.states.values()):
        scene.problem(f"a batch of {count} ended with {heard.states}")
        return False
    if sum(heard.counts.values()) != count:
        scene.problem(f"a batch of {count} counts {heard.counts}")
    for index, said in heard.errors.items():
        if not (disturbed and said["code"] == "model_unavailable") and not (
            scene.faulty and any(words in said["message"] for words in FAULT_WORDS)
        ):
            scene.problem(f"item {index} of a batch: {said}")
    return True


def _compare(scene: Scene, heard: BatchReply, wanted: Sequence[str], *, stopped: bool) -> None:
    """Each item's text with what its prompt must be answered, or with the beginning of that."""
    for index, text in heard.texts.items():
        whole = wanted[index]
        if text != whole if heard.states[index] == "done" else not whole.startswith(text.removesuffix("\ufffd")):
            scene.problem(f"mixed text: item {index} of a batch got {text!r} in place of {whole!r} ({heard.states[index]})")
        if heard.states[index] == "aborted" and not stopped:
            scene.problem(f"item {index} of a batch that nobody stopped was aborted")


async def _stop(scene: Scene, heard: BatchReply) -> None:
    ended = await call(scene.endpoint, "DELETE", f"/albatross/batch/{heard.headers['x-batch-id']}")
    if ended.status != 200:
        scene.problem(f"a batch that runs could not be stopped: {ended.status} {ended.body[:200]!r}")


async def leave_batch(scene: Scene) -> None:
    """Begin a long one, read a little or nothing of it, and go."""
    ids, _, _ = scene.prompt()
    body = {"prompt": ids, "count": scene.chance.choice((4, 40)), "max_tokens": 2000, **GREEDY}
    reader, writer = await send(scene.endpoint, "POST", BATCH_PATH, body)
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
    reply = TranslationReply()
    await ask(scene, TRANSLATIONS, {"target_lang": "zh", "text_list": texts}, reply)
    outcome = judge(scene, reply, disturbed or scene.switching or scene.switches != switches)
    scene.outcomes["translation" if outcome == "answered" else outcome] += 1
    if outcome == "unexpected" or (outcome == "answered" and len(reply.translations) != len(texts)):
        scene.problem(f"{TRANSLATIONS}: {reply.status} {reply.error} {reply.translations}")


BATCHES: list[tuple[int, Client]] = [
    (2, batch),
    (1, lambda scene: batch(scene, stream=False)),
    (1, lambda scene: batch(scene, stop=True)),
    (1, leave_batch),
    (1, translation),
]
