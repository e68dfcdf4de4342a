"""Prompts of every shape and an idle engine, through HTTP."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cases.scripts import tokens, write_script
from host.live import LiveHost

from albatross_plugin.bench import chosen_executor, instant_executor
from albatross_plugin.engine.meter import Meter

Load = Callable[..., LiveHost]
CHUNK = 8
LENGTHS = (1, 2, 9, 10, 11, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 10 * CHUNK + 6)


@pytest.fixture
def script(load: Load, models: Path) -> LiveHost:
    return load(write_script(models / "said.pth", *tokens("Hi", ".", "All", " is", " well")))


@pytest.mark.parametrize("stream", [False, True])
def test_sch_2_r1_empty_prompts_of_every_kind_hold_nobody_up(script: LiveHost, stream: bool) -> None:
    prompts: list[Any] = ["", [""], [], None, ["", ""], [[]], [[], []]]
    bodies = [("/v1/completions", {"prompt": prompt}) for prompt in prompts] + [("/v1/completions", {})]
    for messages in (
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": "", "prefix": True}],
        [{"role": "system", "content": ""}, {"role": "user", "content": " "}],
    ):
        bodies.append(("/v1/chat/completions", {"messages": messages}))
    for path, body in bodies:
        answer = script.client.post(path, json={**body, "max_tokens": 2, "stream": stream})
        assert answer.status_code == 200, (body, answer.text)
        assert not stream or answer.text.endswith("data: [DONE]\r\n\r\n")
        normal = script.client.post("/v1/completions", json={"prompt": "!", "temperature": 0}).json()
        assert normal["choices"][0]["text"] == "Hi.All is well"
    for messages in ([], None):
        assert script.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 400


def test_sch_4_prompts_round_the_chunk_size_say_what_one_token_at_a_time_says(load: Load, random_model: Path) -> None:
    source = random.Random(5)
    prompts = [[source.randrange(1, 65529) for _ in range(length)] for length in LENGTHS]
    texts = []
    for chunk in (1, CHUNK):
        config = {"prefill_chunk": chunk, "min_forward_seq_len": 1}
        host = load(random_model, chosen_executor.strategy("albatross_plugin.model.executor:TorchExecutor", 12, **config))

        def ask(prompt: Any) -> tuple[str, int]:
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
            answer = host.client.post("/v1/completions", json=body).json()  # noqa: B023
            return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]

        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(ask, prompts))
        assert [count for _, count in together] == list(LENGTHS)
        texts.append(together)
    assert texts[0] == texts[1] == [ask(prompt) for prompt in prompts]


@pytest.fixture
def instant(load: Load, random_model: Path) -> LiveHost:
    """Steps take no time, and an idle engine does not wait for a sibling of the request that woke it."""
    return load(random_model, chosen_executor.strategy(instant_executor.NAME, gather_ms=0.0))


def test_r30_figures_are_of_now_and_few(instant: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody reads, records must not pile up, nor may the oldest ones be what is shown."""
    made, report = [], Meter.report

    def counted(self: Meter, *arguments: Any) -> Any:
        made.append(1)
        return report(self, *arguments)

    monkeypatch.setattr(Meter, "report", counted)
    before = instant.status()["albatross"]["tokens"]["generated"]
    for total in (600, 1200):
        instant.client.post("/v1/completions", json={"prompt": "!", "max_tokens": 600, "ignore_eos": True})
        assert instant.status()["albatross"]["tokens"]["generated"] == before + total
    assert len(made) < 60, "a report for a stretch of time, not for each of 1200 steps"
