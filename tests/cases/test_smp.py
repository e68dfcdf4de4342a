"""Sampling through HTTP: greedy settings beside random neighbours, the nucleus, and draws that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cases.scripts import write_four
from host.live import LiveHost

Load = Callable[..., LiveHost]
BATCH = "albatross device=cpu batch=64"
FREE = {"ignore_eos": True, "presence_penalty": 0, "frequency_penalty": 0}
GREEDY: list[dict[str, Any]] = [
    *[{"temperature": 0}] * 5, {"temperature": 0.0001, "top_p": 1}, {"temperature": 1.5, "top_p": 0}, {"temperature": 1.5, "top_p": 0.0001},
    {"temperature": 1.5, "top_p": 1, "top_k": 1},
]  # fmt: skip


def say(host: LiveHost, **body: Any) -> list[str]:
    answer = host.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 8, **FREE, **body})
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_smp_1_r16_greedy_settings_alone_and_beside_random_neighbours(load: Load, random_model: Path) -> None:
    host = load(random_model, BATCH)
    alone = [say(host, **settings) for settings in GREEDY]
    assert alone == alone[:1] * len(GREEDY)
    with ThreadPoolExecutor(len(GREEDY) + 1) as pool:
        random = pool.submit(say, host, temperature=1.5, top_p=1, n=8, max_tokens=40)
        together = list(pool.map(lambda settings: say(host, **settings), GREEDY))
    assert together == alone
    assert len(set(random.result())) == 8 and alone[0][0] not in {text[: len(alone[0][0])] for text in random.result()}


def test_smp_6_equal_prompts_give_different_texts_in_a_batch_and_from_call_to_call(load: Load, random_model: Path) -> None:
    host = load(random_model, BATCH)
    runs = [set(say(host, n=64, temperature=1, top_p=1)) for _ in range(2)]
    assert len(runs[0]) == len(runs[1]) == 64 and not runs[0] & runs[1]


@pytest.fixture
def four(load: Load, models: Path) -> LiveHost:
    return load(write_four(models / "four.pth"), BATCH)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_p": 0.6}, {"a": 4, "b": 3}), ({"top_p": 0.39}, {"a": 1}), ({"top_p": 0.6, "top_k": 1}, {"a": 1}),
        ({"top_p": 0.95, "top_k": 3}, {"a": 4, "b": 3, "c": 2}), ({"top_p": 1}, {"a": 4, "b": 3, "c": 2, "d": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [1, 2])
def test_smp_3_r17_the_token_that_crosses_top_p_is_kept(
    four: LiveHost, settings: dict[str, Any], kept: dict[str, int], temperature: int
) -> None:
    """The nucleus is cut first, then the temperature flattens what is left: weights become their roots."""
    found = Counter(say(four, prompt="!", max_tokens=1, n=128, temperature=temperature, seed=1000, **settings))
    found += Counter(say(four, prompt="!", max_tokens=1, n=128, temperature=temperature, seed=5000, **settings))
    weights = {text: weight ** (1 / temperature) for text, weight in kept.items()}
    assert set(found) == set(kept)
    expected = {text: 256 * weight / sum(weights.values()) for text, weight in weights.items()}
    # Chi-square with at most 3 degrees of freedom: above 16.3 in one of a thousand; the seeds are fixed.
    assert sum((found[text] - wanted) ** 2 / wanted for text, wanted in expected.items()) < 16.3


def test_smp_3_the_hosts_own_path_keeps_the_same_tokens(load: Load, models: Path) -> None:
    host = load(write_four(models / "four.pth"), "cpu fp32")
    body = {"prompt": "!", "max_tokens": 1, "temperature": 1, "top_p": 0.6, "presence_penalty": 0, "frequency_penalty": 0}
    texts = {host.client.post("/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(20)}
    assert texts == {"a", "b"}, "the rwkv package, as the reference"


def test_r18_no_variable_of_the_environment_chooses_the_sampler(load: Load, random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALBATROSS_SAMPLER", "ALBATROSS_SAMPLER_MODE", "ALBATROSS_SAMPLING", "RWKV_SAMPLER"):
        monkeypatch.setenv(name, "greddy")
    host = load(random_model, BATCH, again=True)
    greedy, random = say(host, temperature=0, n=2), say(host, temperature=1.5, top_p=1, n=4)
    assert len(set(greedy)) == 1 and len(set(random)) == 4, "each request's own parameters count"
