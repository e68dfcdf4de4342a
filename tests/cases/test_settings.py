"""Saved settings, and what one request may leave behind for the next: nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.scripts import write_four
from host.live import LiveHost

Load = Callable[..., LiveHost]
DEFAULTS = {"temperature": 1, "max_tokens": 500, "global_penalty": False, "presence_penalty": 0, "frequency_penalty": 1, "state": ""}


@pytest.fixture
def host_with_settings(load: Load, random_model: Path) -> Iterator[LiveHost]:
    """Its saved settings are taken back after the test."""
    host = load(random_model)
    try:
        yield host
    finally:
        assert host.client.post("/update-config", json=DEFAULTS).status_code == 200


def say(host: LiveHost, prompt: object = "a b c", **body: Any) -> dict[str, Any]:
    answer = host.client.post("/v1/completions", json={"prompt": prompt, "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text(host: LiveHost, **body: Any) -> str:
    return str(say(host, **{"temperature": 0, "max_tokens": 6, **body})["choices"][0]["text"])


def save(host: LiveHost, **settings: Any) -> None:
    assert host.client.post("/update-config", json=settings).status_code == 200


def test_r15_every_saved_setting_counts(host_with_settings: LiveHost, tmp_path: Path) -> None:
    host = host_with_settings
    plain = text(host)
    save(host, temperature=0, max_tokens=4)
    assert say(host)["usage"]["completion_tokens"] == 4
    assert say(host)["choices"][0]["text"] == say(host)["choices"][0]["text"] == text(host, max_tokens=4)
    save(host, temperature=2)
    assert len({say(host, top_p=1)["choices"][0]["text"] for _ in range(3)}) == 3
    save(host, max_tokens=500)
    generator = torch.Generator().manual_seed(1)
    torch.save({f"blocks.{i}.att.time_state": torch.randn(1, 64, 64, generator=generator) for i in range(2)}, tmp_path / "tuned.pth")
    save(host, state=str(tmp_path / "tuned.pth"))
    assert text(host) == text(host) != plain
    save(host, state="")
    assert text(host) == plain


def test_r15_the_saved_global_penalty_counts(load: Load, models: Path, host_with_settings: LiveHost) -> None:
    host = load(write_four(models / "four.pth"))
    assert text(host, prompt="a!", max_tokens=1) == "a"
    save(host, global_penalty=True, presence_penalty=2)
    assert text(host, prompt="a!", max_tokens=1) == "b", "the prompt's own token is pushed away"
    assert text(host, prompt="a!", max_tokens=1, global_penalty=False) == "a", "the request wins"


def test_r33_what_was_served_before_changes_no_answer(host_with_settings: LiveHost) -> None:
    """A cache of states that is wrong for a prefix, a repetition or an empty rest would show here."""
    host = host_with_settings
    source = random.Random(3)
    longest = [source.randrange(1, 65000) for _ in range(40)]
    prompts = [longest[:size] for size in (1, 2, 15, 16, 17, 40)] + [longest[:16] + [5], [7, *longest[:16]]]
    fresh = {json.dumps(prompt): text(host, prompt=prompt) for prompt in prompts}
    for prompt in [*prompts, *prompts[::-1], *source.sample(prompts, len(prompts))]:
        assert text(host, prompt=prompt) == fresh[json.dumps(prompt)]
    together = say(host, prompts[::-1], temperature=0, max_tokens=6)["choices"]
    assert [choice["text"] for choice in together] == [fresh[json.dumps(prompt)] for prompt in prompts[::-1]]
