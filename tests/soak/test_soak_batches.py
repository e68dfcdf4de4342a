"""The soak's clients of batches find what is wrong with an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from albatross_plugin.bench import soak_batches
from albatross_plugin.bench.openai_client import Endpoint
from albatross_plugin.bench.soak_batches import BatchReply, batch
from albatross_plugin.bench.soak_clients import Scene
from albatross_plugin.bench.soak_models import RingModel, ring_model

Change = Callable[[BatchReply], object]


@pytest.fixture(scope="module")
def rings(tmp_path_factory: pytest.TempPathFactory) -> RingModel:
    return ring_model(tmp_path_factory.mktemp("rings"), 0)


def problems(rings: RingModel, monkeypatch: pytest.MonkeyPatch, change: Change, **more: Any) -> list[str]:
    """What a client says to the right answer after ``change``."""
    scene = Scene(Endpoint.parse("http://127.0.0.1:1"), rings, 10, random.Random(3), **more)
    asked: list[tuple[list[int], int, int]] = []
    make = scene.prompt

    def prompt() -> tuple[list[int], int, int]:
        asked.append(make())
        return asked[-1]

    async def answer(scene: Scene, path: str, body: dict[str, Any], heard: BatchReply, each: object) -> None:
        heard.counts, heard.status, heard.whole = {"done": 2 * len(asked), "aborted": 0, "error": 0}, 200, True
        for index, (_, ring, start) in enumerate(each for each in asked for _ in range(2)):
            text = rings.text(ring, start, body["max_tokens"])
            heard.item({"id": index, "status": "done", "error": None}, text)
        change(heard)

    monkeypatch.setattr(scene, "prompt", prompt)
    monkeypatch.setattr(soak_batches, "ask", answer)
    asyncio.run(batch(scene, stream=False))
    return scene.problems


def fail(code: str, message: str) -> Change:
    return lambda heard: heard.item({"id": 0, "status": "error", "error": {"code": code, "message": message}}, "")


def test_the_right_answer_is_no_problem(rings: RingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(rings, monkeypatch, lambda heard: None) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda heard: heard.texts.update({1: heard.texts[1] + "x"}), "mixed text: item 1"),
        (lambda heard: heard.texts.update({0: ""}), "mixed text: item 0"),
        (lambda heard: heard.states.pop(0), "ended with"),
        (lambda heard: heard.states.update({0: "running"}), "ended with"),
        (lambda heard: heard.states.update({0: "aborted"}), "nobody stopped"),
        (lambda heard: heard.counts.update({"done": 1}), "counts"),
        (fail("engine_error", "a step was told to raise"), "item 0 of a batch"),
        (lambda heard: setattr(heard, "error", {"message": "no", "code": "x"}), "200 {'message': 'no'"),
    ],
)
def test_what_is_wrong_is_found(rings: RingModel, monkeypatch: pytest.MonkeyPatch, change: Change, words: str) -> None:
    found = problems(rings, monkeypatch, change)
    assert found and words in found[0], found


def test_faults_on_purpose_and_switches_are_no_problem(rings: RingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(rings, monkeypatch, fail("engine_error", "a step was told to raise"), faulty=True) == []
    assert problems(rings, monkeypatch, fail("model_unavailable", "the model was unloaded"), switching=True) == []
