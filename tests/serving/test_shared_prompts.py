"""Prompts that are used several times by one call: fed once, and every text is what it would have been alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import tiny
import torch
from host.live import LiveHost, wait_for

from albatross_plugin import hooks

LONG = "A story of an albatross that followed a ship over the sea for many days, and of the people who saw it: " * 2
BODY = {"temperature": 1, "top_p": 0.9, "max_tokens": 8, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHost]:
    path = tiny.write(tmp_path_factory.mktemp("models") / "random.pth", tiny.random_checkpoint(layers=2, width=64))
    with pytest.MonkeyPatch.context() as patch, LiveHost(("albatross", hooks)) as running:
        patch.setenv("ALBATROSS_GATHER_MS", "0")
        assert running.switch(path, "albatross device=cpu batch=4").status_code == 200
        yield running


def fed(host: LiveHost) -> int:
    """Prompt tokens that the model was fed, told when the engine is idle."""
    wait_for(lambda: host.status()["albatross"]["slots"]["active"] == 0)
    status: dict[str, Any] = host.status()["albatross"]["workers"][0]
    return int(status["prefill_tokens"])


def size(host: LiveHost, text: str = LONG) -> int:
    return len(host.state.model.encode_prompt(text))


def alone(host: LiveHost, seed: int, prompt: str = LONG) -> str:
    answer = host.client.post("/v1/completions", json={**BODY, "prompt": prompt, "seed": seed})
    return str(answer.json()["choices"][0]["text"])


def test_choices_of_one_prompt(host: LiveHost) -> None:
    wanted = [alone(host, 5 + choice) for choice in range(6)]
    before = fed(host)
    answer = host.client.post("/v1/completions", json={**BODY, "prompt": LONG, "n": 6}).json()
    assert [choice["text"] for choice in answer["choices"]] == wanted and len(set(wanted)) == 6
    assert answer["usage"]["prompt_tokens"] == size(host)
    wait_for(lambda: fed(host) - before == size(host) - 1 + 6)


def test_a_batch_of_one_prompt_and_others(host: LiveHost) -> None:
    other = "Another prompt, which is long enough to be worth keeping, with words and more words and still more of them, up to here. " * 2
    prompts = [LONG, other, "short", LONG, LONG, other, "short", LONG] + [LONG] * 8
    wanted = [alone(host, 100 + index, prompt) for index, prompt in enumerate(prompts)]
    before = fed(host)
    body = {**BODY, "prompt": prompts, "seed": 100, "stream": False}
    answer = host.client.post("/albatross/batch/completions", json=body).json()
    assert [item["text"] for item in answer["items"]] == wanted
    assert answer["usage"]["prompt_tokens"] == sum(size(host, prompt) for prompt in prompts)
    once = size(host) - 1 + 12 + size(host, other) - 1 + 2 + 2 * size(host, "short")
    # Items come one after the other: the first of a prompt may be fed before the engine hears that more will share it.
    wait_for(lambda: once <= fed(host) - before <= once + size(host) + size(host, other))


def test_a_state_file_that_changes_is_another_beginning(host: LiveHost) -> None:
    """Two submissions that name the same prompt, with another state between them."""
    model = host.state.model
    body = SimpleNamespace(temperature=0, max_tokens=6, ignore_eos=True)
    generator = torch.Generator().manual_seed(1)
    state = [torch.randn(shape, generator=generator) for _ in range(2) for shape in ((64,), (1, 64, 64), (64,))]
    ids, options, name = model.encode_prompt(LONG), model.options(body), model.new_name()

    def read(completion: Any) -> str:
        return "".join(item[2] for item in completion)

    try:
        plain = read(model.open([ids], options, loop=None))
        holder = model.open(
            [ids], model.options(SimpleNamespace(temperature=0, max_tokens=10_000, ignore_eos=True)), loop=None, shared=name
        )
        model.state_tuned = state
        tuned = read(model.open([ids], options, loop=None))
        assert read(model.open([ids], options, loop=None, shared=name)) == tuned != plain
        model.state_tuned = None
        assert read(model.open([ids], options, loop=None, shared=name)) == plain
        holder.abort()
    finally:
        model.state_tuned = None


def test_an_echoed_prompt_with_numbers_is_fed_by_each(host: LiveHost) -> None:
    before = fed(host)
    answer = host.client.post("/v1/completions", json={**BODY, "prompt": LONG, "n": 2, "echo": True, "logprobs": 0}).json()
    assert all(len(choice["logprobs"]["tokens"]) == size(host) + 8 for choice in answer["choices"])
    wait_for(lambda: fed(host) - before == 2 * size(host))
