"""The rwkv package and llama.cpp behind the lock, through HTTP."""

from __future__ import annotations

import base64
import gc
import json
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from host.live import LiveHost, wait_for
from openai import OpenAI

GREEDY = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
PROMPTS = ["Hello", "The quick brown fox", "世界 😀 and more"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveHost]:
    with LiveHost() as running:
        yield running


def use(server: LiveHost, path: Path, strategy: str = "cpu fp32") -> LiveHost:
    answer = server.switch(path, strategy)
    assert answer.status_code == 200, answer.text
    return server


def ask(server: LiveHost, **body: Any) -> dict[str, Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = server.client.post(path, json={**GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def streamed(server: LiveHost, **body: Any) -> tuple[str, list[str | None], dict[str, int]]:
    """Text, the finish reasons of all chunks and the usage, checked for form on the way."""
    chat = "messages" in body
    events = server.events(
        "/v1/chat/completions" if chat else "/v1/completions", {**GREEDY, **body, "stream_options": {"include_usage": True}}
    )
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    if chat:
        assert choices[0]["delta"]["role"] == "assistant"
        text = "".join(choice["delta"].get("content", "") for choice in choices)
    else:
        text = "".join(choice["text"] for choice in choices)
    return text, [choice["finish_reason"] for choice in choices], chunks[-1]["usage"]


def test_three_readers_of_one_set_of_weights(server: LiveHost, models: Path) -> None:
    texts = {}
    for name in ("random.pth", "random.gguf"):
        use(server, models / name)
        texts[name] = [ask(server, prompt=prompt, max_tokens=24)["choices"][0]["text"] for prompt in PROMPTS]
    assert texts["random.pth"] == texts["random.gguf"]
    assert all(texts["random.pth"])


@pytest.mark.parametrize("name", ["random.pth", "random.gguf"])
def test_api_1_limits_and_counts(server: LiveHost, models: Path, name: str) -> None:
    use(server, models / name)
    for limit in (1, 5):
        whole = ask(server, prompt="Hello", max_tokens=limit)
        text, reasons, usage = streamed(server, prompt="Hello", max_tokens=limit)
        assert whole["choices"][0]["text"] == text
        assert whole["choices"][0]["finish_reason"] == "length" and reasons[-1] == "length" and set(reasons[:-1]) <= {None}
        assert whole["usage"] == usage == {"prompt_tokens": 1, "completion_tokens": limit, "total_tokens": 1 + limit}
    assert ask(server, prompt="Hello", max_completion_tokens=2, max_tokens=9)["usage"]["completion_tokens"] == 2


def test_req_73_gguf_goes_to_llama_whatever_the_strategy(server: LiveHost, models: Path) -> None:
    use(server, models / "random.gguf", "albatross workers=1 batch=32")
    assert not [thread for thread in threading.enumerate() if "albatross" in thread.name]
    assert type(server.state.model).__name__ == "TextLlama"
    upper = models / "UPPER.GGUF"
    if not upper.exists():
        upper.hardlink_to(models / "random.gguf")
    use(server, upper, "words")
    assert ask(server, prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_tok_3_a_chat_ends_before_the_next_turn(server: LiveHost, models: Path) -> None:
    """The script says "Hi", ".", "\\n\\n", "User", " more"; the stop text is not sent."""
    use(server, models / "script.pth")
    messages = [{"role": "user", "content": "x"}]
    for more in ({"stop": ["\n\nUser"]}, {"stop": "\n\nUser"}):
        whole = ask(server, messages=messages, **more)
        text, reasons, usage = streamed(server, messages=messages, **more)
        assert whole["choices"][0]["message"]["content"] == text == "Hi."
        assert whole["choices"][0]["finish_reason"] == reasons[-1] == "stop"
        assert whole["usage"]["completion_tokens"] == usage["completion_tokens"] == 4
    # The turn's own text is "User:", which the script does not say: with null it runs to its end.
    assert ask(server, messages=messages, stop=None)["choices"][0]["message"]["content"].startswith("Hi.\n\nUser")
    named = ask(server, messages=messages, stop=None, assistant_name="Hi")
    assert named["choices"][0]["finish_reason"] == "stop"


def test_stops_by_token(server: LiveHost, models: Path) -> None:
    use(server, models / "script.pth")
    by_id = ask(server, prompt=":", stop_token_ids=[261])
    assert (by_id["choices"][0]["text"], by_id["choices"][0]["finish_reason"]) == ("Hi.", "stop")
    assert by_id["usage"]["completion_tokens"] == 3
    to_the_end = ask(server, prompt=":", stop=["", "never"])
    assert to_the_end["choices"][0]["finish_reason"] == "stop" and to_the_end["usage"]["completion_tokens"] == 6


def test_tok_1_characters_of_several_tokens_arrive_whole(server: LiveHost, models: Path) -> None:
    use(server, models / "smile.pth")
    assert ask(server, prompt=" ")["choices"][0]["text"] == "😀Hi"
    assert streamed(server, prompt=" ")[0] == "😀Hi"
    assert ask(server, prompt=" ", stop=["😀"])["choices"][0]["text"] == ""
    cut = ask(server, prompt=" ", max_tokens=2)
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == ("", "length")


def test_smp_1_extremes_are_greedy_and_none_fails(server: LiveHost, models: Path) -> None:
    use(server, models / "random.pth")
    greedy = ask(server, prompt="Hello", max_tokens=6)["choices"][0]["text"]
    for more in ({"temperature": 0.0001, "top_p": 1}, {"temperature": 1, "top_p": 0}, {"temperature": 1, "top_k": 1, "top_p": 1}):
        assert ask(server, prompt="Hello", max_tokens=6, **more)["choices"][0]["text"] == greedy, more
    texts = {ask(server, prompt="Hello", max_tokens=6, temperature=2, top_p=1)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1, "top_p of 1 is no nucleus, not greedy"


def test_r15_saved_settings_count_and_do_not_stick(server: LiveHost, models: Path) -> None:
    use(server, models / "random.pth")
    post = server.client.post
    assert post("/update-config", json={"max_tokens": 3}).status_code == 200
    assert ask(server, prompt="Hello")["usage"]["completion_tokens"] == 3
    assert ask(server, prompt="Hello", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert ask(server, prompt="Hello")["usage"]["completion_tokens"] == 3
    post("/update-config", json={"max_tokens": 500})


def test_penalties_change_a_repetition(server: LiveHost, models: Path) -> None:
    """A model that says one token for ever is driven off it by the presence penalty."""
    import tiny

    path = models / "loop.pth"
    if not path.exists():
        weights = tiny.script_checkpoint([59, 1097])
        weights["emb.weight"][1097] = weights["emb.weight"][59]
        weights["head.weight"][0] = 0
        weights["head.weight"][47, 0] = 9.9
        tiny.write(path, weights)
    use(server, path)
    same = ask(server, prompt=":", max_tokens=3)
    assert same["choices"][0]["text"] == "HiHiHi"
    other = ask(server, prompt=":", max_tokens=3, presence_penalty=2)
    assert other["choices"][0]["text"].startswith("Hi.")
    counted = ask(server, prompt=":Hi", max_tokens=1, presence_penalty=2, global_penalty=True)
    assert counted["choices"][0]["text"] == "."


@pytest.mark.parametrize("name", ["random.pth", "random.gguf"])
@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n", 2),
        ("logprobs", 2),
        ("echo", True),
        ("best_of", 2),
        ("best_of", True),
        ("echo", 0),
        ("logit_bias", {"33": -100}),
        ("suffix", "x"),
        ("invented", 1),
    ],
)
def test_api_3_what_is_not_served_is_named(server: LiveHost, models: Path, name: str, parameter: str, value: object) -> None:
    if server.status()["model"] != "random" or not str(server.state.model.model_path).endswith(name):
        use(server, models / name)
    answer = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, parameter: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == parameter
    harmless = server.client.post("/v1/completions", json={"prompt": ["a"], "max_tokens": 1, "n": 1, "user": "me", "logprobs": None})
    assert harmless.status_code == 200


def test_parameters_of_one_path_only(server: LiveHost, models: Path) -> None:
    def refused(**body: object) -> str:
        answer = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **body})
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["param"])

    use(server, models / "random.pth")
    assert refused(seed=1) == "seed"
    assert refused(prompt=["a", "b"]) == refused(prompt=[1, 2]) == "prompt"
    raw = b'{"prompt": "\\ud800", "max_tokens": 1}'
    surrogate = server.client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert surrogate.status_code == 400 and surrogate.json()["error"]["param"] == "prompt"
    assert refused(stream_options=[1]) == "stream_options"
    assert refused(state="nowhere.pth") == "state"
    assert ask(server, prompt="Hello", max_tokens=1)["usage"]["completion_tokens"] == 1, "the refused state did not stay"
    use(server, models / "random.gguf")
    assert refused(penalty_decay=0.99) == "penalty_decay"
    assert refused(global_penalty=True) == "global_penalty"
    assert refused(stop_token_ids=[1]) == "stop_token_ids"
    drawn = [ask(server, prompt="Hello", max_tokens=6, temperature=2, top_p=1, seed=seed)["choices"][0]["text"] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert server.client.post("/v1/embeddings", json={"input": "a"}).status_code == 400


def test_req_87_one_at_a_time_and_the_loop_stays_free(server: LiveHost, models: Path) -> None:
    use(server, models / "random.pth")
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(ask, server, prompt="Hello", max_tokens=120) for _ in range(3)]
        wait_for(server.state.completion_lock.locked)
        start = time.monotonic()
        assert server.client.get("/health").status_code == 200
        assert time.monotonic() - start < 1
        assert not all(answer.done() for answer in answers)
        texts = {answer.result(30)["choices"][0]["text"] for answer in answers}
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["random.pth", "random.gguf"])
@pytest.mark.parametrize("stream", [True, False])
def test_abt_1_a_client_that_leaves_gives_the_lock_back(server: LiveHost, models: Path, name: str, stream: bool) -> None:
    use(server, models / name)
    body = json.dumps({"prompt": "Hello", "max_tokens": 100000, "stream": stream, **GREEDY}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for client in clients:
        client.sendall(head.encode() + body)
    wait_for(server.state.completion_lock.locked)
    for client in clients:
        client.close()
    wait_for(lambda: not server.state.completion_lock.locked(), 5)
    assert ask(server, prompt="Hello", max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("name", ["random.pth", "random.gguf"])
def test_mem_3_a_switch_ends_what_runs_and_what_waits(server: LiveHost, models: Path, name: str) -> None:
    use(server, models / name)
    body = {"prompt": "Hello", "max_tokens": 100000, **GREEDY}
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(server.events, "/v1/completions", body) for _ in range(2)]
        # One has the lock and the other stands before it: a call that came after the switch would be refused, not ended.
        wait_for(lambda: server.state.completion_lock.locked() and bool(server.state.completion_lock._waiters))
        assert server.switch("").status_code == 200
        for stream in streams:
            last = json.loads(stream.result(15)[-1])
            assert last["error"]["code"] in ("model_unavailable", "model_not_loaded")
    wait_for(lambda: not server.state.completion_lock.locked())


@pytest.mark.parametrize("name", ["random.pth", "random.gguf"])
def test_mem_1_an_unloaded_model_is_gone(server: LiveHost, models: Path, name: str) -> None:
    threads = []
    for _ in range(3):
        use(server, models / name)
        ask(server, prompt="Hello", max_tokens=2)
        dead = weakref.ref(server.state.model)
        assert server.switch("").status_code == 200
        gc.collect()
        assert dead() is None
        threads.append(threading.active_count())
    assert threads[-1] <= threads[0]


def test_embeddings(server: LiveHost, models: Path) -> None:
    use(server, models / "random.pth")
    post = server.client.post
    one = post("/v1/embeddings", json={"input": "a big apple"}).json()
    vector = one["data"][0]["embedding"]
    assert len(vector) == 128 and abs(sum(x * x for x in vector) - 1) < 1e-4
    assert one["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    ids = server.state.model.pipeline.encode("a big apple")
    for path in ("/embeddings", "/v1/engines/text-embedding-ada-002/embeddings", "/engines/text-embedding-ada-002/embeddings"):
        assert post(path, json={"input": ids}).json()["data"][0]["embedding"] == pytest.approx(vector)
    coded = post("/v1/embeddings", json={"input": ["a big apple", "x"], "encoding_format": "base64"}).json()["data"]
    assert [entry["index"] for entry in coded] == [0, 1]
    assert struct.unpack("<128f", base64.b64decode(coded[0]["embedding"])) == pytest.approx(vector)
    fast = post("/v1/embeddings", json={"input": "a big apple", "fast_mode": True}).json()["data"][0]["embedding"]
    assert len(fast) == 128 and fast != vector
    with OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        assert client.embeddings.create(model="m", input="a big apple").data[0].embedding == pytest.approx(vector)
    for value in ("", [], [[]], [""], [70000], [-1], [["a"]], 5):
        assert post("/v1/embeddings", json={"input": value}).status_code == 400, value
    refused = post("/v1/embeddings", json={"input": "a", "dimensions": 5})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dimensions"


def test_smp_5_a_poisoned_output_fails_one_request(server: LiveHost, models: Path) -> None:
    import tiny

    path = models / "poison.pth"
    if not path.exists():
        weights = tiny.script_checkpoint([59, 1097, 47])
        weights["head.weight"][100, 1] = float("inf")
        tiny.write(path, weights)
    use(server, path)
    failed = server.client.post("/v1/completions", json={"prompt": ":", **GREEDY})
    assert failed.status_code == 500 and "not finite" in failed.json()["error"]["message"]
    events = server.events("/v1/completions", {"prompt": ":", **GREEDY})
    assert "not finite" in json.loads(events[-1])["error"]["message"]
    assert ask(server, prompt=":", max_tokens=1)["choices"][0]["text"] == "Hi"


def test_state_files_change_what_the_rwkv_package_says(server: LiveHost, models: Path, tmp_path: Path) -> None:
    import torch

    use(server, models / "random.pth")
    plain = ask(server, prompt="Hello", max_tokens=8)["choices"][0]["text"]
    generator = torch.Generator().manual_seed(1)
    tuned = {f"blocks.{i}.att.time_state": torch.randn(2, 64, 64, generator=generator) for i in range(2)}
    torch.save(tuned, tmp_path / "state.pth")
    post = server.client.post
    assert post("/update-config", json={"state": str(tmp_path / "state.pth")}).status_code == 200
    changed = [ask(server, prompt="Hello", max_tokens=8)["choices"][0]["text"] for _ in range(2)]
    assert changed[0] == changed[1] != plain
    assert ask(server, prompt="Hello", max_tokens=8, state="")["choices"][0]["text"] == plain
    assert ask(server, prompt="Hello", max_tokens=8)["choices"][0]["text"] == changed[0]
    assert post("/update-config", json={"state": ""}).status_code == 200
    assert ask(server, prompt="Hello", max_tokens=8)["choices"][0]["text"] == plain


def _version_4(layers: int = 1, width: int = 64) -> dict[str, Any]:
    """An untrained RWKV-4 with the World vocabulary."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    weights = {"emb.weight": matrix(65536, width), "head.weight": matrix(65536, width)}
    norms = ["blocks.0.ln0", "ln_out", *(f"blocks.{i}.{name}" for i in range(layers) for name in ("ln1", "ln2"))]
    for name in norms:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(width), torch.zeros(width)
    for i in range(layers):
        for name in ("att.time_mix_k", "att.time_mix_v", "att.time_mix_r", "ffn.time_mix_k", "ffn.time_mix_r"):
            weights[f"blocks.{i}.{name}"] = torch.full((1, 1, width), 0.5)
        weights[f"blocks.{i}.att.time_decay"], weights[f"blocks.{i}.att.time_first"] = torch.zeros(width), torch.zeros(width)
        for name in ("key", "value", "receptance", "output"):
            weights[f"blocks.{i}.att.{name}.weight"] = matrix(width, width)
        weights[f"blocks.{i}.ffn.key.weight"], weights[f"blocks.{i}.ffn.value.weight"] = matrix(4 * width, width), matrix(width, 4 * width)
        weights[f"blocks.{i}.ffn.receptance.weight"] = matrix(width, width)
    return weights


def test_older_models_take_another_import_of_the_package(server: LiveHost, models: Path) -> None:
    import tiny

    path = models / "version4.pth"
    tiny.write(path, _version_4())
    use(server, models / "random.pth")
    before = ask(server, prompt="Hello", max_tokens=4)["choices"][0]["text"]
    use(server, path)
    assert server.state.model.version == 4
    assert ask(server, prompt="Hello", max_tokens=4)["usage"]["completion_tokens"] >= 1
    assert server.client.post("/v1/embeddings", json={"input": "Hello"}).status_code == 200
    use(server, models / "random.pth")
    assert ask(server, prompt="Hello", max_tokens=4)["choices"][0]["text"] == before
