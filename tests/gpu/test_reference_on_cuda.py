"""The torch reference on a card: half precision weights, float32 state, the same contract as on the CPU."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tiny

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.errors import EngineInitError

pytestmark = pytest.mark.gpu

SCRIPT = [34, 1097, 47, 40640]


@pytest.fixture
def card() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


def texts(model: AlbatrossRWKV, prompts: list[str], tokens: int = 12) -> list[str]:
    body = SimpleNamespace(temperature=0, max_tokens=tokens)
    running = [model.generate(body, prompt) for prompt in prompts]
    return ["".join(item[2] for item in each) for each in running]


@pytest.mark.usefixtures("card")
def test_a_script_is_said_on_the_card(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    model = AlbatrossRWKV(str(path), 1, 8, device="cuda")
    try:
        assert model.info.device.startswith("cuda")
        assert texts(model, ["!"] * 16) == ["Hi.Observ"] * 16
    finally:
        model.shutdown()


@pytest.mark.usefixtures("card")
def test_neighbours_do_not_matter_on_the_card(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(layers=4, width=256))
    prompts = ["hello", "a longer prompt of several words", "third " * 40, "x"]
    model = AlbatrossRWKV(str(path), 1, 4, device="cuda")
    try:
        alone = [texts(model, [prompt])[0] for prompt in prompts]
        assert texts(model, prompts) == alone
    finally:
        model.shutdown()


@pytest.mark.usefixtures("card")
def test_str_3_more_workers_than_cards(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    workers = torch.cuda.device_count() + 1
    began = time.monotonic()
    with pytest.raises(EngineInitError, match=f"workers={workers} needs {workers} GPUs"):
        AlbatrossRWKV(str(path), workers, 4, device="cuda")
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("card")
def test_mem_1_a_card_is_given_back(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(layers=2, width=256))
    used = []
    for _ in range(10):
        model = AlbatrossRWKV(str(path), 1, 8, device="cuda")
        texts(model, ["hello"])
        model.shutdown()
        del model
        gc.collect()
        used.append(torch.cuda.memory_allocated())
    assert used[-1] <= used[1]
