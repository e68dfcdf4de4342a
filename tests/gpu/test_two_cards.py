"""Two workers on two cards: each has its own, both serve, one that ends leaves the other alone, and everything comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tiny

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import GenerationError
from albatross_plugin.model import kernels as loader

pytestmark = pytest.mark.gpu

SCRIPT = [34, 1097, 47, 40640]
SLOTS = 8


@pytest.fixture(autouse=True)
def two_cards() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("models") / "random.pth", tiny.random_checkpoint(width=256, dtype=torch.float16))


@pytest.fixture
def both(path: Path) -> Iterator[AlbatrossRWKV]:
    model = AlbatrossRWKV(str(path), 2, SLOTS, device="cuda")
    try:
        yield model
    finally:
        model.shutdown()


def texts(model: AlbatrossRWKV, prompts: list[str], tokens: int = 24) -> list[str]:
    """All at once, greedily."""
    body = SimpleNamespace(temperature=0, frequency_penalty=0, ignore_eos=True, max_tokens=tokens)
    running = [model.generate(body, prompt) for prompt in prompts]
    return ["".join(item[2] for item in each) for each in running]


def used() -> list[int]:
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return [torch.cuda.memory_allocated(card) for card in (0, 1)]


def workers(model: AlbatrossRWKV) -> list[dict[str, Any]]:
    return list(model.status()["workers"])


def test_str_3_each_worker_has_a_card_of_its_own_and_both_serve(both: AlbatrossRWKV) -> None:
    held = [worker["memory_bytes"] for worker in workers(both)]
    # The fastest products differ from card to card, and with them the working memory.
    assert held[0] == pytest.approx(held[1], rel=0.05) and held[0] > 0
    said = texts(both, [f"prompt number {number}" for number in range(2 * SLOTS)])
    assert len(set(said)) > SLOTS
    deadline = time.monotonic() + 5
    while any(worker["decode_rows"] == 0 for worker in workers(both)):
        assert time.monotonic() < deadline, workers(both)
        time.sleep(0.02)


def test_str_3_two_cards_say_what_one_says(both: AlbatrossRWKV, path: Path, tmp_path: Path) -> None:
    """A few tokens of a random model, whose ties the last bits may decide later on; a script to its end."""
    prompts = [f"prompt number {number}" for number in range(SLOTS)]
    alone = AlbatrossRWKV(str(path), 1, SLOTS, device="cuda")
    try:
        expected = texts(alone, prompts, 4)
    finally:
        alone.shutdown()
    assert texts(both, prompts * 2, 4) == expected * 2
    script = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    speaker = AlbatrossRWKV(str(script), 2, SLOTS, device="cuda")
    try:
        body = SimpleNamespace(temperature=0, max_tokens=12)
        running = [speaker.generate(body, "!") for _ in range(5 * SLOTS)]
        assert ["".join(item[2] for item in each) for each in running] == ["Hi.Observ"] * (5 * SLOTS)
    finally:
        speaker.shutdown()


def test_str_3_memory_of_both_cards_comes_back(path: Path) -> None:
    before = used()
    held = []
    for _ in range(3):
        model = AlbatrossRWKV(str(path), 2, SLOTS, device="cuda")
        texts(model, ["a"] * 4, 4)
        held.append([now - was for now, was in zip(used(), before, strict=True)])
        model.shutdown()
        del model
        assert used() == before
    assert min(held[0]) > 0
    for cards in held[1:]:
        assert cards == pytest.approx(held[0], rel=0.05)


def test_str_3_a_worker_that_dies_leaves_the_other_serving(both: AlbatrossRWKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the fault is made; the worker's end, its requests' errors and what the other does are real."""
    from albatross_plugin.model.cuda_executor import CudaExecutor

    launch = CudaExecutor.launch

    class Death(BaseException):
        pass

    def fail(self: CudaExecutor, plan: Any) -> Any:
        if self._device.index == 1:
            raise Death("this worker was told to die")
        return launch(self, plan)

    monkeypatch.setattr(CudaExecutor, "launch", fail)
    body = SimpleNamespace(temperature=0, frequency_penalty=0, ignore_eos=True, max_tokens=4)
    # One for each: a request goes to the worker that has the fewest.
    running = [both.generate(body, "a") for _ in range(2)]
    said = "".join(item[2] for item in running[0])
    with pytest.raises(GenerationError):
        list(running[1])
    assert [worker["phase"] for worker in workers(both)] == ["ready", "down"]
    assert texts(both, ["a"] * SLOTS, 4) == [said] * SLOTS


def test_str_3_a_kernel_refuses_tensors_of_two_cards() -> None:
    ops = loader.ops()
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    table, x = (torch.zeros(size, 64, dtype=torch.float16, device=first) for size in (100, 3))
    ids, last = torch.zeros(3, dtype=torch.int32, device=first), torch.zeros(4, dtype=torch.int32, device=second)
    with pytest.raises(RuntimeError, match="embed: last is on cuda:1, the first tensor on cuda:0"):
        ops.embed(table, ids, last, x)


@pytest.mark.parametrize("card", [0, 1])
def test_str_3_kernels_run_on_the_card_of_their_tensors_whichever_is_current(card: int) -> None:
    ops = loader.ops()
    with torch.cuda.device(1 - card):
        h = torch.full((4, 64), 3.0, dtype=torch.float16, device=torch.device("cuda", card))
        ops.relu_square(h)
    torch.cuda.synchronize(card)
    assert bool((h == 9).all())
