"""The engine benchmark over the executor without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albatross_plugin.bench.engine_benchmark import main, parse_shape


def run(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    path = tmp_path / "figures.json"
    options = '{"step_ms": 1.0, "row_us": 10, "token_us": 10}'
    assert main(["--executor", "instant", "--device", "cpu", "--options", options, "--runs", "1", "--json", str(path), *arguments]) == 0
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, many = run(tmp_path, "--batch", "1,8", "--new-tokens", "40")
    assert (one["what"], one["tokens"], many["tokens"]) == ("batch 1", 40, 320)
    for figures, rows in ((one, 1), (many, 8)):
        # No step is shorter than the executor makes it, so no rate is higher.
        assert 0 < figures["rate"] <= rows / (0.001 + 1e-5 * rows) * 1.05
        assert 0 < figures["first_median"] <= figures["first_longest"]
        assert figures["longest_gap"] > 0 and figures["cpu_per_token"] > 0
    out = capsys.readouterr().out
    assert "summary:" in out and "| batch 8 |" in out


def test_prompts(tmp_path: Path) -> None:
    long, many = run(tmp_path, "--prefill", "600", "--prefill", "4x32")
    assert long["what"] == "prefill 1 x 600" and many["what"] == "prefill 4 x 32"
    assert 0 < long["rate"] <= 1 / 1e-5


def test_a_prompt_beside_streams(tmp_path: Path) -> None:
    (figures,) = run(tmp_path, "--ttft", "--streams", "4", "--ttft-prompt", "60", "--arrivals", "3")
    assert 0 < figures["first_median"] <= figures["first_longest"]
    assert figures["longest_gap"] >= figures["step"] > 0.001


def test_shapes() -> None:
    assert parse_shape("4096") == (1, 4096) and parse_shape("32x16") == (32, 16)
    with pytest.raises(SystemExit):
        main(["--batch", "1"])
