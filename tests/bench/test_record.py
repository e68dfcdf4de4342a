"""Figures in the page are those of the logs beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from albatross_plugin.bench.record import RUNS, main, put, quoted

DOCS = Path(__file__).parents[2] / "docs"
LOG = """command: python -m albatross_plugin.bench.cpu_host_comparison --pairs 1
date: 2030-01-02 03:04 UTC
machine: 2 cores
versions: Python 3.11
pair 1

summary:
Medians of 1 pairs:

| a | b |
|---|---:|
| x | 1 |
"""


@pytest.mark.parametrize("name", sorted(RUNS))
def test_the_page_quotes_its_logs(name: str) -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    log = (DOCS / "benchmarks" / f"{name}.log").read_text(encoding="utf-8")
    assert put(page, name, quoted(name, log)) == page
    assert not re.search(r"/(home|root|tmp|work|Users)/", log)


def test_summary_goes_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = "<!-- begin cpu-host-comparison -->\nold\n<!-- end cpu-host-comparison -->\n"
    page.write_text(f"# Title\n\n{marks}\nAfter.\n", encoding="utf-8")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "cpu-host-comparison.log").write_text(LOG, encoding="utf-8")
    for _ in range(2):
        assert main([str(page), "--no-run", "--only", "cpu-host-comparison"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title\n\n<!-- begin") and text.endswith("<!-- end cpu-host-comparison -->\n\nAfter.\n")
    assert "old" not in text and text.count("| x | 1 |") == 1 and "Measured 2030-01-02 03:04 UTC on: 2 cores. Python 3.11." in text
    assert "(benchmarks/cpu-host-comparison.log)" in text and "--pairs 1\n```" in text


def test_a_cut_log_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="no summary"):
        quoted("memory-run", LOG.partition("summary:")[0])


@pytest.mark.parametrize("page", ["# Title\n", "<!-- begin a -->\n", "<!-- begin a -->\n<!-- end a -->\n" * 2])
def test_a_page_without_its_marks_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="marks"):
        put(page, "a", "text")
