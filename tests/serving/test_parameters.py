"""Parameters of a call: honoured, or refused by name; and the saved configuration behind them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from stub import StubHost

Load = Callable[..., StubHost]
START = 34


def ask(host: StubHost, **body: Any) -> Any:
    return host.client.post("/v1/completions", json={"prompt": "!", "temperature": 0, "max_tokens": 4, **body})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1), ("temperature", "hot"), ("top_p", -0.1), ("top_k", -1), ("max_tokens", 0), ("max_completion_tokens", 0),
        ("seed", "x"), ("n", 0), ("n", 1.5), ("best_of", 2), ("logprobs", 21), ("echo", "yes"), ("stop", [1]),
        ("stop_token_ids", [70000]), ("stop_token_ids", [-1]), ("stop_token_ids", [1000000000]),
        ("logit_bias", {"191222": 5}), ("logit_bias", {"a": 5}), ("logit_bias", {"33": 500}), ("response_format", {"type": "xml"}), ("response_format", "json"), ("response_format", {"type": "json_schema"}),
        ("repetition_penalty", 1.2), ("xtc_probability", 0.5), ("num_beams", 4), ("reasoning_effort", "high"), ("stream_options", 5),
        ("stop", ["x"] * 2000), ("logit_bias", {"5": 10**400}), ("logit_bias", {"1_0": 1}), ("logit_bias", {" 5": 1}), ("temperature", 10**400), ("prompt", [-1]), ("prompt", [65536]), ("prompt", ["a", 1]), ("prompt", [[1, "a"]]),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(load: Load, name: str, value: Any) -> None:
    host = load([START, 1097, 47])
    answer = ask(host, **{name: value})
    assert answer.status_code in (400, 422), answer.text
    error = answer.json()["error"]
    assert name in f"{error['param']} {error['message']}"
    assert ask(host).json()["choices"][0]["text"] == "Hi."


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_names_that_no_system_has_are_refused(load: Load, path: str) -> None:
    host = load([START, 1097, 47])
    for state in ("a" * 100_000, "a\0b"):
        body = {"prompt": "!"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "!"}]}
        answer = host.client.post(path, json={**body, "max_tokens": 1, "state": state})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "state"


def test_api_3_lists_and_choices(load: Load) -> None:
    host = load([START, 1097, 47])
    answer = ask(host, prompt=["!", "a!", "!"], n=2).json()
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert {c["text"] for c in answer["choices"]} == {"Hi."}
    assert answer["usage"]["completion_tokens"] == 18
    assert answer["usage"]["prompt_tokens"] == 4
    tokens = ask(host, prompt=[[START], [98, START]]).json()
    assert [c["text"] for c in tokens["choices"]] == ["Hi.", "Hi."]
    assert ask(host, prompt=[98, START]).json()["choices"][0]["text"] == "Hi."


def test_api_3_echo_and_logprobs(load: Load) -> None:
    host = load([START, 1097, 47])
    choice = ask(host, prompt="!", echo=True, logprobs=2).json()["choices"][0]
    assert choice["text"] == "!Hi."
    numbers = choice["logprobs"]
    assert numbers["tokens"][:3] == ["!", "Hi", "."]
    assert numbers["token_logprobs"][0] is None
    assert numbers["text_offset"][:3] == [0, 1, 3]
    assert all(-1e-2 > 0 or p <= 0 for p in numbers["token_logprobs"][1:])
    assert all(len(top) == 2 for top in numbers["top_logprobs"][1:])


def test_api_3_chat_logprobs(load: Load) -> None:
    host = load([59, 1097, 47])
    answer = host.client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "temperature": 0, "logprobs": True, "top_logprobs": 3},
    ).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[:2]] == ["Hi", "."]
    assert all(len(entry["top_logprobs"]) == 3 and math.isfinite(entry["logprob"]) for entry in content)


def test_req_51_logit_bias_forbids_a_token(load: Load) -> None:
    host = load([START, 1097, 47])
    assert "Hi" not in ask(host, logit_bias={"1097": -100}).json()["choices"][0]["text"]


def test_seed_repeats_and_choices_differ(random_host: StubHost) -> None:
    options = {"temperature": 1, "top_p": 1, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    first = [c["text"] for c in ask(random_host, n=2, **options).json()["choices"]]
    again = [c["text"] for c in ask(random_host, n=2, **options).json()["choices"]]
    assert first == again
    assert first[0] != first[1]
    assert ask(random_host, **{**options, "seed": 8}).json()["choices"][0]["text"] == first[1], "choice i uses seed + i"


def test_r15_saved_configuration_counts(load: Load) -> None:
    host = load([START, 1097, 47, 40640, 33944])
    try:
        assert host.client.post("/update-config", json={"max_tokens": 1}).status_code == 200
        answer = host.client.post("/v1/completions", json={"prompt": "!", "temperature": 0}).json()
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"
        assert ask(host, max_tokens=3).json()["usage"]["completion_tokens"] == 3, "the request wins over the saved configuration"
    finally:
        host.client.post("/update-config", json={"max_tokens": 500})


def test_req_107_embeddings_are_refused(load: Load) -> None:
    host = load([START, 1097, 47])
    answer = host.client.post("/v1/embeddings", json={"input": "hello"})
    assert answer.status_code == 400
    assert "does not support embeddings" in answer.text


def test_lone_surrogate_is_refused(load: Load) -> None:
    host = load([START, 1097, 47])
    answer = host.client.post(
        "/v1/completions", content=b'{"prompt": "a\\ud83d!", "max_tokens": 2}', headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    assert ask(host).json()["choices"][0]["text"] == "Hi."


def test_a_call_that_holds_too_many_requests_is_refused_before_any_work(load: Load) -> None:
    host = load([START, 1097, 47])
    began = time.monotonic()
    answer = ask(host, prompt=["x" * 15] * 4000, n=128, seed=1)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("seed", [0, -1, 2**63, 10**30])
def test_any_whole_number_is_a_seed(random_host: StubHost, seed: int) -> None:
    options = {"temperature": 1, "top_p": 1, "seed": seed, "max_tokens": 6, "ignore_eos": True}
    first, again = (ask(random_host, **options).json()["choices"][0]["text"] for _ in range(2))
    assert first == again


def test_parts_of_a_character_have_names_of_their_own(load: Load) -> None:
    host = load([START, 3319, 153, 129])
    numbers = ask(host, logprobs=1, max_tokens=3).json()["choices"][0]["logprobs"]
    assert numbers["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98", "bytes:\\x80"]
