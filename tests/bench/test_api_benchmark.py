"""The API benchmark from its command line, against a real HTTP server."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeout
from typing import Any

import pytest
from bench.fake_server import serving

from albatross_plugin.bench.albatross_api_benchmark import PROMPT, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    return status, capsys.readouterr().out


def test_req_127_report(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--port", str(fake.port), "--requests", "6", "--concurrency", "3", "--max-tokens", "5", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["requests"], report["failures"], report["concurrency"]) == (6, 0, 3)
    assert (report["total_tokens"], report["tokens_counted_by"]) == (30, "usage")
    assert report["tokens_per_s"] == pytest.approx(30 / report["wall_s"], rel=0.01)
    for name in ("first_token_s", "token_gap_s", "latency_s"):
        values = list(report[name].values())
        assert values == sorted(values) and values[0] >= 0
    assert report["first_token_s"]["max"] <= report["latency_s"]["max"]
    assert {body["messages"][0]["content"] for body in fake.bodies} == {PROMPT}
    assert {body["model"] for body in fake.bodies} == {"fake-model"}


def test_req_127_concurrency_is_what_was_asked_for(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.first_delay = 0.15
    run(capsys, "--base-url", fake.url + "/v1", "--requests", "8", "--concurrency", "4", "--max-tokens", "2")
    assert fake.most == 4


def test_text_report_names_the_figures(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--port", str(fake.port), "--requests", "2", "--max-tokens", "3", "--prompt", "Hej")
    assert status == 0
    for words in ("concurrent requests: 2", "total tokens:        6", "wall time:", "tokens/s:", "first token:", "p90"):
        assert words in out
    assert fake.bodies[-1]["messages"] == [{"role": "user", "content": "Hej"}]


def test_non_stream(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--port", str(fake.port), "--non-stream", "--requests", "2", "--max-tokens", "3", "--json")
    report = json.loads(out)
    assert status == 0 and report["total_tokens"] == 6 and "first_token_s" not in report
    assert not any(body["stream"] or "stream_options" in body for body in fake.bodies)


def test_members_that_a_server_refuses_are_left_out(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refuses = ("stream_options", "ignore_eos")
    status, out = run(capsys, "--port", str(fake.port), "--no-stop", "--requests", "2", "--max-tokens", "4", "--json")
    report = json.loads(out)
    assert status == 0 and report["total_tokens"] == 8 and report["tokens_counted_by"] == "chunks"
    assert fake.bodies[-1]["stop"] is None and "ignore_eos" not in fake.bodies[-1]


def test_no_stop_asks_for_full_length(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--port", str(fake.port), "--no-stop", "--requests", "1", "--max-tokens", "2")
    assert fake.bodies[-1]["ignore_eos"] is True and fake.bodies[-1]["stop"] is None
    run(capsys, "--port", str(fake.port), "--requests", "1", "--max-tokens", "2")
    assert not {"ignore_eos", "stop"} & fake.bodies[-1].keys()


def test_profile_is_reset_and_read(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--port", str(fake.port), "--profile", "--requests", "1", "--max-tokens", "2", "--json")
    assert status == 0 and fake.resets == 1 and json.loads(out)["profile"]["tokens"] == 3.0


def test_failures_count_and_end_with_status_1(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.cut_after = 1
    status, out = run(capsys, "--port", str(fake.port), "--requests", "3", "--max-tokens", "4", "--json")
    report = json.loads(out)
    assert status == 1 and report["failures"] == 3 and report["total_tokens"] == 0 and report["errors"]


def test_waits_for_a_server_that_starts_late(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    words = ["--port", str(port), "--requests", "1", "--max-tokens", "2", "--connect-retry-delay", "0.05"]
    assert main([*words, "--connect-retries", "2"]) == 1
    assert "no connection" in capsys.readouterr().err
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(main, [*words, "--connect-retries", "200"])
        with pytest.raises(FuturesTimeout):
            waiting.result(timeout=0.3)
        with serving(port):
            assert waiting.result(timeout=10) == 0
