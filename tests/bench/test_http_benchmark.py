"""The client for hundreds of streams, against a real HTTP server and against the host without a model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from albatross_plugin.bench.http_benchmark import main


def run(port: int, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "report.json"
    status = main(["--port", str(port), "--processes", "2", "--json", str(path), *arguments])
    return status, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_are_the_server_s_count_over_all_processes(fake: Any, tmp_path: Path, stream: bool) -> None:
    status, report = run(
        fake.port, tmp_path, "--concurrency", "5", "--requests", "9", "--max-tokens", "7", *([] if stream else ["--non-stream"])
    )
    assert status == 0 and (report["requests"], report["failures"], report["tokens"]) == (9, 0, 63)
    assert fake.most <= 5 and len(fake.bodies) == 9 and all(body["stream"] is stream for body in fake.bodies)
    assert report["tokens_per_s"] == pytest.approx(63 / report["wall_s"], rel=0.01)
    if stream:
        # Role, seven words, the reason, and the usage.
        assert report["tokens_per_event"] == pytest.approx(7 / 10, abs=0.001)
        assert 0 < report["first_ms"]["p50"] <= report["latency_ms"]["p99"]
    else:
        assert "tokens_per_event" not in report


def test_answers_that_are_not_whole_are_failures(fake: Any, tmp_path: Path) -> None:
    fake.cut_after = 3
    status, report = run(fake.port, tmp_path, "--concurrency", "2", "--max-tokens", "7")
    assert status == 1 and report["failures"] == 2 and "tokens" not in report


def test_a_server_without_the_page_cannot_be_split(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fake.port, tmp_path, "--concurrency", "2", "--split")[0] == 1
    assert "measured_host" in capsys.readouterr().out


@pytest.mark.slow
def test_the_host_without_a_model_tells_where_its_time_goes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-u", "-m", "albatross_plugin.bench.measured_host", "--port", "0", "--no-access-log"]
    environ = {**os.environ, "ALBATROSS_INSTANT": '{"step_ms": 1.0, "batch": 8}', "ALBATROSS_PROFILE": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path) as host:
        try:
            assert host.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)", host.stdout.readline())
            assert found is not None
            # The model is made before the first request is answered.
            status, report = run(int(found[1]), tmp_path, "--concurrency", "8", "--max-tokens", "20", "--split")
            assert status == 0 and report["tokens"] == 160
            split = report["split"]
            if sys.platform == "linux":
                assert {"MainThread", "albatross-engine", "albatross-worker-0"} <= split["cpu_us_per_token"].keys()
            assert split["lock_wait_ms"]["mean"] >= 0 and split["front_end_us_per_token"]["json_dump"] > 0
            status, whole = run(int(found[1]), tmp_path, "--concurrency", "8", "--max-tokens", "20", "--non-stream")
            assert status == 0 and whole["tokens"] == 160
            status, batch = run(int(found[1]), tmp_path, "--concurrency", "1", "--batch", "24", "--max-tokens", "20", "--split")
            assert status == 0 and (batch["requests"], batch["tokens"]) == (1, 480)
            # What an item says within 50 ms is one event.
            assert batch["tokens_per_event"] > 2
            for more in (("--bare-step-ms", "1"), ("--non-stream",)):
                status, report = run(int(found[1]), tmp_path, "--concurrency", "8", "--max-tokens", "20", "--bare", *more)
                assert status == 0 and report["tokens"] == report["bare"]["tokens"] == 160
                costs = [each["split"]["cpu_us_per_token_process"] for each in (report, report["bare"])]
                assert report["above_bare_us_per_token"] == pytest.approx(costs[0] - costs[1], abs=0.01)
                # Not one token went through the engine for the bare run.
                assert report["bare"]["split"]["cpu_us_per_token"].get("albatross-worker-0", 0.0) < costs[0]
        finally:
            host.terminate()
