"""The benchmarks on a card run through, with a model that is small in everything but its vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from albatross_plugin.bench import kernel_benchmark, step_benchmark
from albatross_plugin.bench.measurements import find_ceilings, parse, read_lines
from albatross_plugin.bench.roofline import OFFICIAL, ModelSizes

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OFFICIAL, "0.1b", ModelSizes(2, 256, (32, 32, 32, 64)))


def test_steps_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    words = ["--shape", "0.1b", "--batch", "1,5,32", "--state", "fp16,fp32", "--prefill", "--seconds", "0.01", "--json", str(path)]
    with torch.cuda.stream(torch.cuda.Stream()):
        assert step_benchmark.main(words) == 0
    lines = read_lines([path])
    found = [one for one in map(parse, lines) if one is not None]
    assert find_ceilings(lines) is not None
    assert len(found) == 2 * (3 * 2 + 2) and all(one.tokens_per_second > 0 for one in found)


def test_every_kernel(tmp_path: Path) -> None:
    path = tmp_path / "kernels.jsonl"
    assert kernel_benchmark.main(["--shape", "0.1b", "--batch", "1,32", "--seconds", "0.001", "--json", str(path)]) == 0
    lines = read_lines([path])[1:]
    names = {"wkv step", "wkv sequence", "mix 6", "mix 1", "gemv", "sparse_linear", "grouped_gemm", "matmul", "relu_square", "sample"}
    assert {line["kernel"] for line in lines} == names
    assert all(line["microseconds"] > 0 for line in lines)
