"""Percentiles, tables and the head of a log."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albatross_plugin.bench.report import Log, median, percentile, table

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


@given(NUMBERS)
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for part in (0.1, 0.9, 0.99):
        assert percentile(values, part) == pytest.approx(cuts[round(100 * part) - 1], abs=1e-6)


@given(NUMBERS, st.floats(0, 1))
def test_percentiles_stay_inside(values: list[float], part: float) -> None:
    assert min(values) - 1e-6 <= percentile(values, part) <= max(values) + 1e-6


def test_no_values() -> None:
    with pytest.raises(ValueError):
        percentile([], 0.5)


def test_table() -> None:
    assert table(("a", "b"), [("x", "1")]) == "| a | b |\n|---|---:|\n| x | 1 |"


def test_log_says_what_was_run_and_where_and_names_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "run.log"
    with Log(path) as log:
        log.head("albatross_plugin.bench.nothing", ["--pairs 5"])
        log.line("0.5 tok/s")
    text = path.read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert text.startswith("command: python -m albatross_plugin.bench.nothing --pairs 5\n") and text.endswith("0.5 tok/s\n")
    assert re.search(r"^machine: \d+ cores, ", text, re.MULTILINE) and "versions: Python 3." in text
    assert not re.search(r"(^|\s)/\w+/", text) and str(tmp_path) not in text


def test_a_log_names_files_without_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log() as log:
        log.head("albatross_plugin.bench.nothing", ["--model", str(tmp_path / "rand.pth"), "--log", "runs/some.log"])
    assert capsys.readouterr().out.startswith("command: python -m albatross_plugin.bench.nothing --model rand.pth --log runs/some.log\n")
