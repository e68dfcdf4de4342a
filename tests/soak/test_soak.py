"""The soak and its kin: short ones always, the long ones as ``tox run -e soak``. Logs of long runs go to the folder in ALBATROSS_SOAK_LOGS."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from albatross_plugin.bench import soak, soak_lag, soak_streams

TESTS = Path(__file__).parents[1]
# More at a time are done sooner.
CROWD = ["--clients", "64", "--batch", "48"]
Main = Callable[[list[str]], int]


def run(main: Main, folder: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The figures of one run, all of whose checks held."""
    path = folder / f"{name}.json"
    logs = os.environ.get("ALBATROSS_SOAK_LOGS")
    log = ["--log", str(Path(logs) / f"{name}.log")] if logs and arguments else []
    status = main([*arguments, "--json", str(path), *log])
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert status == 0, figures
    return figures


def check_no_leak(figures: dict[str, Any]) -> None:
    assert figures["found"] == [] and figures["unfinished"] == figures["slots_in_use"] == figures["queued"] == 0
    assert figures["end"]["threads"] <= figures["start"]["threads"] and figures["end"]["files"] <= figures["start"]["files"]


@pytest.fixture
def with_faults(monkeypatch: pytest.MonkeyPatch) -> str:
    """The server is a process of its own, which must find the executor that has the faults."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return "faults.executor:FaultyExecutor"


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tmp_path: Path, with_faults: str) -> None:
    # So short a run says little of memory: the first requests fill caches.
    figures = run(
        soak.main, tmp_path, "faults", "--minutes", "0.12", "--pace", "0.1", "--faults", with_faults, "--clients", "12", "--drift", "0.2"
    )
    check_no_leak(figures)
    outcomes = figures["outcomes"]
    assert outcomes["answered"] > 20 and outcomes["left"] > 5 and outcomes["failed on purpose"] > 1
    assert sum(count for name, count in outcomes.items() if name.startswith("batch")) > 2
    assert figures["loads"] >= 2 and figures["longest_error_s"] < 5


@pytest.mark.slow
def test_abt_1_a_thousand_requests_a_third_of_which_leave(tmp_path: Path) -> None:
    # Memory is told by the long run alone.
    figures = run(soak.main, tmp_path, "aborts", "--requests", "1000", "--warm", "200", "--mix", "aborts", "--drift", "0.2", *CROWD)
    check_no_leak(figures)
    assert figures["requests"] >= 1000 and 200 < figures["outcomes"]["left"] < 450


@pytest.mark.parametrize("queue", [4096, 10])
def test_ui_1_a_hundred_streams_under_a_tenth_of_the_files(tmp_path: Path, queue: int) -> None:
    more = ["--max-tokens", "100" if queue == 10 else "4", "--prompts", "5"]
    figures = run(
        soak_streams.main, tmp_path, "streams", "--streams", "100", "--batch", "8", "--files", "124", "--queue", str(queue), *more
    )
    assert figures["found"] == []
    assert figures["statuses"] == ({"200": 100} if queue == 4096 else {"200": 18, "429": 82})


@pytest.mark.slow
def test_the_loop_is_not_held_up_by_a_long_prompt(tmp_path: Path) -> None:
    figures = run(soak_lag.main, tmp_path, "lag", "--prompts", "5")
    assert figures["streams and prompts"]["looks"] > 10 and figures["streams and prompts"]["p99"] < 50


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("faults", [False, True])
def test_five_minutes_of_everything_lose_nothing(tmp_path: Path, with_faults: str, faults: bool) -> None:
    more = ["--faults", with_faults] if faults else []
    figures = run(soak.main, tmp_path, "soak-faults" if faults else "soak", "--minutes", "5", *more)
    check_no_leak(figures)
    assert figures["drift"] < 0.02
    if faults:
        assert figures["faults"] > 100 and figures["reloads"] > 5 and figures["longest_error_s"] < 5


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_abt_1_ten_thousand_requests_a_third_of_which_leave(tmp_path: Path) -> None:
    figures = run(soak.main, tmp_path, "soak-10000", "--requests", "10000", "--warm", "1000", "--mix", "aborts")
    check_no_leak(figures)
    assert figures["drift"] < 0.02 and figures["outcomes"]["left"] > 3000


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("queue", [4096, 100])
def test_ui_1_a_thousand_streams_under_a_limit_of_1024_files(tmp_path: Path, queue: int) -> None:
    name, length = ("soak-1000", "16") if queue == 4096 else ("soak-1000-queue", "256")
    more = ["--batch", "64", "--files", "1024", "--queue", str(queue), "--max-tokens", length]
    figures = run(soak_streams.main, tmp_path, name, "--streams", "1000", *more)
    assert figures["statuses"] == ({"200": 1000} if queue == 4096 else {"200": 164, "429": 836})


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_loop_is_not_held_up_by_many_long_prompts(tmp_path: Path) -> None:
    figures = run(soak_lag.main, tmp_path, "soak-lag", "--prompts", "100")
    assert figures["streams and prompts"]["p99"] < 50
