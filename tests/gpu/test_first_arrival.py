"""The first prompt that arrives beside running streams, in a process that has served nothing before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

# Code that is brought to the card when it is first needed takes 40 ms and more; a step of this model takes less than one.
LONGEST = 0.02


def test_no_stream_waits_for_code_to_be_loaded(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(2, 128))
    figures = tmp_path / "figures.json"
    command = ["-m", "albatross_plugin.bench.engine_benchmark", "--model", str(model), "--ttft", "--arrivals", "5", "--json", str(figures)]
    subprocess.run([sys.executable, *command], check=True, timeout=120)
    (found,) = json.loads(figures.read_text())
    assert 0 < found["longest_gap"] < LONGEST, found
