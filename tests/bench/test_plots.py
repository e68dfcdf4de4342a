"""Drawings from made-up rates, and what is drawn of which lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from albatross_plugin.bench.measurements import OURS, Measurement
from albatross_plugin.bench.plots import Series, main, rooflines, series_of
from albatross_plugin.bench.roofline import OFFICIAL, Ceilings, pass_work

H200 = Ceilings(4171e9, 704e12)


def rate(peer: str, batch: int, value: float, kind: str = "forward", state: str = "fp16", model: str = "1.5b") -> Measurement:
    return Measurement(peer, model, batch, kind, state, value)


def test_lines_of_a_model_are_ours_first_and_ascend() -> None:
    found = [
        rate("other", 32, 5.0),
        rate("other", 1, 1.0),
        rate(OURS, 1, 2.0),
        rate(OURS, 1, 3.0),
        rate(OURS, 1, 9.0, model="7.2b"),
        rate("other", 1, 4.0, state="fp32"),
        rate("other", 1, 7.0, kind="prefill T=1024"),
        rate("other", 0, 8.0),
    ]
    lines = series_of(found, "1.5b")
    assert [(line.label, list(line.points.items())) for line in lines] == [
        ("albatross-plugin: forward", [(1, 3.0)]),
        ("other: forward", [(1, 1.0), (32, 5.0)]),
        ("other: forward, float32 state", [(1, 4.0)]),
    ]


@pytest.mark.parametrize("state", ["fp16", "fp32", ""])
def test_a_rate_at_the_roofline_is_all_of_it(state: str) -> None:
    best = {rows: rows / H200.seconds(pass_work(OFFICIAL["7.2b"], rows, 1, state or "fp16")) for rows in (1, 320)}
    assert rooflines(Series("x", "forward", state, best), "7.2b", H200) == pytest.approx({1: 1.0, 320: 1.0})


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_drawings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    ours = [
        {"peer": OURS, "model": "1.5b", "batch": b, "kind": "forward", "state": "fp16", "tokens_per_second": 500.0 * b} for b in (1, 32)
    ]
    theirs = [{"peer": "other", "model": m, "batch": 32, "what": "forward", "state": "fp32", "tok_s": 900.0} for m in ("1.5b", "mine")]
    card = {"peer": OURS, "kind": "ceilings", "card": "a card", "copy_gb_s": 4171.0, "product_tflop_s": 704.0}
    files = [write(tmp_path / "a.jsonl", card, *ours), write(tmp_path / "b.jsonl", *theirs)]
    assert main([*files, "--out", str(tmp_path / "images")]) == 0
    names = ["throughput-1.5b.svg", "roofline-1.5b.svg", "throughput-mine.svg"]
    assert capsys.readouterr().out.split() == [str(tmp_path / "images" / name) for name in names]
    first = (tmp_path / "images" / names[0]).read_bytes()
    for words in (b"albatross-plugin: forward", b"other: forward, float32 state", b"roofline, float16 state", b"tokens a second"):
        assert words in first
    assert main([*files, "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / names[0]).read_bytes() == first


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.jsonl").write_text("no JSON\n", encoding="utf-8")
    assert main([str(tmp_path / "odd.jsonl"), "--out", str(tmp_path)]) == 1
    assert "odd.jsonl, line 1" in capsys.readouterr().err
