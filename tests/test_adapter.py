"""The model object that a host holds, used directly."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tiny

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import EngineInitError, RequestError

SCRIPT = [34, 1097, 47, 40640]
TEXT = "Hi.Observ"


def albatross_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("albatross")]


@pytest.fixture(scope="module")
def script_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "script.pth"
    tiny.write(path, tiny.script_checkpoint(SCRIPT))
    return path


@pytest.fixture(scope="module")
def model(script_path: Path) -> Iterator[AlbatrossRWKV]:
    made = AlbatrossRWKV(str(script_path), 1, 4, None, device="cpu")
    yield made
    made.shutdown()


def greedy(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(temperature=0, max_tokens=10, **more)


def test_req_25_to_32_metadata(model: AlbatrossRWKV) -> None:
    assert (model.version, model.tokenizer_len, model.rwkv_type.name, model.EOS_ID) == (7, 65536, "World", 0)
    assert (model.temperature, model.top_p, model.top_k) == (1.0, 0.3, 0)
    assert (model.penalty_alpha_frequency, model.penalty_alpha_presence, model.penalty_decay) == (1, 0, 0.996)
    assert (model.max_tokens_per_generation, model.global_penalty, model.state_path) == (500, False, "")
    assert (model.name, model.interface, model.user, model.bot) == ("script", ":", "User", "Assistant")
    assert bool(model), "hosts test the truth of a model object"


def test_req_33_34_38_generate_yields_five_tuples(model: AlbatrossRWKV) -> None:
    assert "albatross-engine" in albatross_threads()
    items = list(model.generate(greedy(), "!", stop=None, stop_token_ids=None))
    assert {item[0] for item in items} == {"text"}
    assert items[-1][1] == TEXT
    assert "".join(item[2] for item in items) == TEXT
    assert items[-1][3:] == (1, 4)


def test_older_form_yields_four_tuples(model: AlbatrossRWKV) -> None:
    model.temperature = 0
    try:
        items = list(model.generate("!", stop="Obs"))
    finally:
        model.temperature = 1.0
    assert items[-1][0] == "Hi."
    assert "".join(item[1] for item in items) == "Hi."
    assert all(len(item) == 4 for item in items)


def test_req_20_41_async_generate(model: AlbatrossRWKV) -> None:
    async def run() -> list[tuple[Any, ...]]:
        completion = model.async_generate(greedy(), "!", stop=["Obs"], stop_token_ids=[])
        assert callable(completion.abort)
        return [item async for item in completion]

    items = asyncio.run(run())
    assert items[-1][1] == "Hi."


def test_req_90_102_abort_ends_one_request_only(model: AlbatrossRWKV) -> None:
    async def run() -> None:
        longer = SimpleNamespace(temperature=1, max_tokens=100_000, ignore_eos=True)
        first = model.async_generate(longer, "a")
        second = model.async_generate(longer, "b")
        await first.pieces()
        await second.pieces()
        first.abort()
        before = second.completion_tokens
        while second.completion_tokens < before + 20:
            assert await second.pieces()
        assert await first.pieces() == []
        second.abort()

    asyncio.run(run())
    deadline = time.monotonic() + 5
    while model.status()["slots"]["active"]:
        assert time.monotonic() < deadline


def test_a_dropped_completion_frees_its_slot(model: AlbatrossRWKV) -> None:
    completion = model.generate(SimpleNamespace(max_tokens=100_000, ignore_eos=True), "a")
    next(completion)
    assert model.status()["slots"]["active"] == 1
    del completion
    gc.collect()
    deadline = time.monotonic() + 5
    while model.status()["slots"]["active"]:
        assert time.monotonic() < deadline


def test_req_109_to_111_refusals(model: AlbatrossRWKV) -> None:
    with pytest.raises(NotImplementedError, match=r"^AlbatrossRWKV uses batch inference. Use generate\(\) instead of run_rnn\(\).$"):
        model.run_rnn([1])
    with pytest.raises(NotImplementedError, match="^AlbatrossRWKV does not support embeddings. ") as caught:
        model.get_embedding("text", False)
    assert caught.value.status == 400  # type: ignore[attr-defined]


def test_facades_serve_a_host_that_reaches_through(model: AlbatrossRWKV) -> None:
    assert model.pipeline.decode(model.pipeline.encode("User")) == "User"
    assert (model.model.args.n_layer, model.model.args.n_embd, model.model.version) == (2, 128, 7)
    assert len(model.model.strategy) == 2
    zeros = torch.zeros(4, dtype=model.model.strategy[0].atype, device=model.model.strategy[0].device)
    assert zeros.dtype == torch.float32


def test_req_108_a_start_state_changes_the_text(tmp_path: Path) -> None:
    path = tmp_path / "random.pth"
    tiny.write(path, tiny.random_checkpoint())
    model = AlbatrossRWKV(str(path), 1, 2, device="cpu")
    try:

        def say() -> str:
            return str(list(model.generate(greedy(ignore_eos=True), "hello"))[-1][1])

        plain = say()
        model.state_tuned = [torch.zeros(128), torch.randn(2, 64, 64), torch.zeros(128)] * 2
        assert say() != plain
        model.state_tuned = None
        assert say() == plain
        model.state_tuned = [torch.zeros(1)]
        with pytest.raises((RequestError, RuntimeError), match="state"):
            say()
        model.state_tuned = None
        assert say() == plain
    finally:
        model.shutdown()


def test_bad_ids_are_refused(model: AlbatrossRWKV) -> None:
    for bad in (-1, 65536, "a", 1.0, True):
        with pytest.raises(RequestError, match="not a token id"):
            model.check_ids([33, bad])


def test_req_37_failures_carry_the_prefix_and_leave_nothing(tmp_path: Path, script_path: Path) -> None:
    empty = tmp_path / "empty.pth"
    torch.save({}, empty)
    wrong_name = tmp_path / "model.bin"
    wrong_name.write_bytes(b"x")
    cases = [
        (lambda: AlbatrossRWKV(str(tmp_path / "absent.pth"), device="cpu"), "model file not found"),
        (lambda: AlbatrossRWKV(str(wrong_name), device="cpu"), "is not a .pth file"),
        (lambda: AlbatrossRWKV(str(empty), device="cpu"), ""),
        (lambda: AlbatrossRWKV(str(script_path), tokenizer=str(tmp_path / "none.txt"), device="cpu"), "none.txt"),
        (lambda: AlbatrossRWKV(str(script_path), 10**9, 1, device="cpu"), "workers=1000000000"),
        (lambda: AlbatrossRWKV(str(script_path), device="cpu", executor="no_such_module:Executor"), "no_such_module"),
    ]
    before = sorted(albatross_threads())
    for make, words in cases:
        began = time.monotonic()
        with pytest.raises(EngineInitError, match="^Albatross engine initialization failed: .") as caught:
            make()
        assert words in str(caught.value)
        assert time.monotonic() - began < 5
    assert sorted(albatross_threads()) == before


def test_after_shutdown_a_request_is_refused(script_path: Path) -> None:
    model = AlbatrossRWKV(str(script_path), 1, 1, device="cpu")
    model.shutdown()
    model.shutdown()
    with pytest.raises(RequestError) as caught:
        model.generate(greedy(), "!")
    assert caught.value.status == 503


def test_req_131_shutdown_and_a_dropped_reference_end_every_thread(script_path: Path) -> None:
    before = sorted(albatross_threads())
    for drop in (False, True):
        model = AlbatrossRWKV(str(script_path), 2, 4, device="cpu")
        assert len(albatross_threads()) == len(before) + 3
        alive = weakref.ref(model)
        if not drop:
            model.shutdown()
        del model
        gc.collect()
        assert alive() is None
        assert sorted(albatross_threads()) == before
