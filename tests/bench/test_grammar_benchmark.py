"""What a request bound to a schema costs its neighbours: the benchmark in small, and its figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny

from albatross_plugin.bench.grammar_benchmark import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("model") / "small.pth", tiny.random_checkpoint())


def measure(model: Path, folder: Path, *words: str) -> tuple[int, str]:
    log = folder / "grammar.log"
    status = main(["--model", str(model), "--log", str(log), *words])
    return status, log.read_text(encoding="utf-8")


def test_free_texts_stay_the_same_and_bound_ones_fit(model: Path, tmp_path: Path) -> None:
    status, log = measure(model, tmp_path, "--rounds", "1", "--free", "3", "--new-tokens", "96", "--allow", "100")
    assert status == 0 and "the same in all runs" in log and "NOT" not in log
    assert re.search(r"had \d\d+ tokens; [1-9]\d* of their texts were complete", log)
    assert len(re.findall(r"^round 1  (alone|free neighbour|bound neighbour): ", log, re.MULTILINE)) == 3


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_schema_slows_seven_free_texts_by_less_than_a_tenth(model: Path, tmp_path: Path) -> None:
    status, log = measure(model, tmp_path, "--rounds", "9")
    assert status == 0, log
