"""Lines of rates: what is written can be read, and other programs' names for the same things are understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albatross_plugin.bench.measurements import Lines, Measurement, find_ceilings, parse, read_lines
from albatross_plugin.bench.roofline import Ceilings


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ours.jsonl"
    with Lines(path) as lines:
        lines.add_ceilings("a card", Ceilings(4171.04e9, 704e12))
        lines.add(model="1.5b", batch=32, kind="forward", state="fp16", tokens_per_second=18000.5)
        # Before the end, too: a run may be cut short.
        assert len(read_lines([path])) == 2
    ceilings, rate = read_lines([path])
    assert find_ceilings([ceilings, rate]) == Ceilings(4171.0e9, 704e12)
    assert parse(ceilings) is None
    assert parse(rate) == Measurement("albatross-plugin", "1.5b", 32, "forward", "fp16", 18000.5)


def test_nothing_is_written_without_a_path() -> None:
    with Lines(None) as lines:
        lines.add(model="1.5b")


def test_other_names_and_lines_without_a_rate() -> None:
    line = {"peer": "other", "model": "7.2b", "batch": 320, "what": "engine", "state": "fp16", "seconds": 2.0, "tok_s": 5940.0}
    assert parse(line) == Measurement("other", "7.2b", 320, "engine", "fp16", 5940.0)
    assert parse({"peer": "other", "model": "7.2b", "batch": 1, "what": "forward", "tok_s": 3}) == Measurement(
        "other", "7.2b", 1, "forward", "", 3.0
    )
    assert parse({**line, "error": "out of memory"}) is None
    assert parse({"peer": "other", "model": "7.2b", "batch": 0, "what": "job seconds", "seconds": 1.0}) is None


def test_ceilings_of_other_programs() -> None:
    copy, product = {"what": "copy", "GBs": 4171.0}, {"what": "fp16_8192", "TFLOPs": 704.0}
    assert find_ceilings([copy, {"what": "copy", "error": "no card"}, product]) == Ceilings(4171e9, 704e12)
    assert find_ceilings([copy]) is None
    assert find_ceilings([]) is None


@pytest.mark.parametrize("text", ["{", "[1]", '"a"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"peer": "x"}) + "\n\n" + text + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"odd\.jsonl, line 3"):
        read_lines([path])
