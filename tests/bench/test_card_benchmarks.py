"""The benchmarks on a card: their words, and that they end quietly where there is none."""

from __future__ import annotations

import argparse

import pytest

from albatross_plugin.bench import kernel_benchmark, step_benchmark
from albatross_plugin.bench.step_benchmark import choices, numbers


def test_numbers() -> None:
    assert numbers("1,32,960") == [1, 32, 960]
    for text in ("", "1,,2", "0", "-1", "one"):
        with pytest.raises(argparse.ArgumentTypeError):
            numbers(text)


def test_choices() -> None:
    assert choices(("fp16", "fp32"), "fp32,fp16") == ["fp32", "fp16"]
    with pytest.raises(argparse.ArgumentTypeError, match="'fp8' is none of fp16, fp32"):
        choices(("fp16", "fp32"), "fp16,fp8")


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    options = step_benchmark.parser().parse_args(["--shape", "1.5b,7.2b"])
    assert (options.shape, options.batch, options.state) == (["1.5b", "7.2b"], [1, 32, 128, 320, 960], ["fp16"])
    for words in ([], ["--shape", "1.5b", "--model", "x.pth"], ["--shape", "9b"], ["--shape", "1.5b", "--plot", "images"]):
        with pytest.raises(SystemExit) as ended:
            step_benchmark.main(words)
        assert ended.value.code == 2
    assert "--plot draws what --json writes" in capsys.readouterr().err


def test_without_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    assert step_benchmark.main(["--shape", "0.1b"]) == 1
    assert kernel_benchmark.main([]) == 1
    assert capsys.readouterr().err == 2 * "there is no CUDA card here\n"
