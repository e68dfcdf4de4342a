"""A model object with the default device: its texts, and the refusal of more workers than cards."""

from __future__ import annotations

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
def test_str_3_more_workers_than_cards(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    workers = torch.cuda.device_count() + 1
    began = time.monotonic()
    with pytest.raises(EngineInitError, match=f"workers={workers} needs {workers} GPUs"):
        AlbatrossRWKV(str(path), workers, 4, device="cuda")
    assert time.monotonic() - began < 5
