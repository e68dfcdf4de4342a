"""The API benchmark from its command line, against a real HTTP server."""

from __future__ import annotations

import io
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeout
from pathlib import Path
from typing import Any

import pytest
from bench.fake_server import serving

from albatross_plugin.bench.albatross_api_benchmark import PROMPT, main
from albatross_plugin.bench.load_plot import draw_load
from albatross_plugin.bench.progress import Progress


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


# --- several numbers of concurrent requests, drawings, progress -------------------------------------------------------


def test_a_sweep_gives_a_row_a_report_and_a_drawing_for_each(fake: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn, kept = tmp_path / "load.png", tmp_path / "load.json"
    words = ["--port", str(fake.port), "--concurrency", "1,2,8", "--max-tokens", "3", "--plot", str(drawn), "--json", str(kept)]
    assert main(words) == 0
    captured = capsys.readouterr()
    reports = json.loads(kept.read_text(encoding="utf-8"))
    assert [(each["concurrency"], each["requests"], each["total_tokens"]) for each in reports] == [(1, 4, 12), (2, 8, 24), (8, 32, 96)]
    for each in reports:
        assert (
            {"first_token_s", "token_gap_s", "event_gap_s", "latency_s"} <= each.keys() and each["wall_s"] > 0 and each["tokens_per_s"] > 0
        )
        assert list(each["first_token_s"]) == ["min", "p50", "p90", "p99", "max"]
    rows = [line.split("|")[1:7] for line in captured.out.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row[:4]] for row in rows[1:]] == [
        ["1", "4", "0", "12"],
        ["2", "8", "0", "24"],
        ["8", "32", "0", "96"],
    ]
    assert drawn.read_bytes().startswith(b"\x89PNG\r\n") and drawn.stat().st_size > 10_000
    # Not a terminal: a line for each, and no bar.
    lines = captured.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["concurrency 1", "concurrency 2", "concurrency 8"]
    assert "32 of 32 requests" in lines[2] and "chunks/s, 0 running" in lines[2]


def test_what_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spread = {"min": 0.01, "p50": 0.02, "p90": 0.03, "p99": 0.04, "max": 0.05}
    reports = [
        {"concurrency": level, "tokens_per_s": 10.0 * level, "latency_s": spread, "first_token_s": spread} for level in (960, 1, 320)
    ]
    draw_load([*reports, {"concurrency": 4, "tokens_per_s": 0.0, "latency_s": None}], tmp_path / "a.svg", "a title")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in ("a title", "tokens a second", "concurrent requests", "first token, p50", "whole answer, p99", ">320<", ">960<"):
        assert words in text
    assert "between tokens" not in text


@pytest.mark.parametrize(("name", "words"), [("load.txt", "must end in one of .png"), ("none/load.png", "there is no folder")])
def test_a_drawing_that_cannot_be_written_is_told_before_anything_is_sent(
    name: str, words: str, fake: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--port", str(fake.port), "--plot", str(tmp_path / name)]) == 1
    assert words in capsys.readouterr().err and fake.bodies == []


def test_without_matplotlib_the_extra_is_named(
    fake: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--port", str(fake.port), "--plot", str(tmp_path / "load.png")]) == 1
    assert "pip install albatross-plugin[bench]" in capsys.readouterr().err and fake.bodies == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar_and_elsewhere_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    now = 0.0
    terminal, file, silent = Terminal(), io.StringIO(), io.StringIO()
    with Progress("load", 8, target=terminal) as bar, Progress("load", 8, target=file, clock=lambda: now) as lines:
        for done in (2, 4, 8):
            bar.show(done, "9 chunks/s")
            lines.show(done, "9 chunks/s")
            now += 3
    assert "4/8" in terminal.getvalue() and "9 chunks/s" in terminal.getvalue() and "\r" in terminal.getvalue()
    # Every five seconds, and at the end.
    assert file.getvalue() == "load: 8 of 8 requests, 9 chunks/s\n"
    with Progress("load", 8, quiet=True, target=silent, clock=lambda: now) as nothing:
        now += 60
        nothing.show(4, "")
    assert silent.getvalue() == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    plain = Terminal()
    with Progress("load", 8, target=plain) as lines:
        lines.show(1, "no tqdm")
    assert plain.getvalue() == "load: 1 of 8 requests, no tqdm\n"


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def refused(fake: Any, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What is said when the run does not begin; nothing but the trial was sent."""
    assert main(["--port", str(fake.port), "--requests", "3", *more]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and len(fake.bodies) <= 1 and "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, {}, {"error": {"message": "a key is needed"}}), ("401", "a key is needed", "--api-key")),
        ((404, {}, {"error": {"message": "The model `x` does not exist."}}), ("404", "does not exist", "model's name")),
        ((400, {}, {"detail": "model not loaded"}), ("400", "model not loaded")),
        ((503, {"Retry-After": "9"}, {"error": "the model is loading"}), ("503", "the model is loading", "Retry-After: 9 s")),
        ((307, {"Location": "http://other/v1"}, ""), ("307", "Location: http://other/v1", "use the address")),
        ((502, {"Content-Type": "text/html"}, "<html>Bad Gateway</html>"), ("502", "a web page")),
        ((200, {"Content-Type": "text/html"}, "<html>Hello</html>"), ("[DONE]", "is this an OpenAI-style server?")),
    ],
)
def test_a_refusal_of_every_request_ends_the_run_in_words(
    refusal: tuple[int, dict[str, str], Any], words: tuple[str, ...], fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.refusal = refusal
    said = refused(fake, capsys)
    for word in words:
        assert word in said


def test_a_wrong_path_is_named(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(fake, capsys, "--base-url", f"{fake.url}/api/v1")
    assert "status 404 from /api/v1/chat/completions: Not Found; check the address" in said and fake.bodies == []


def test_no_tls_there(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not speak TLS" in refused(fake, capsys, "--base-url", f"https://127.0.0.1:{fake.port}")


def test_a_whole_answer_that_is_a_web_page(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refusal = (200, {"Content-Type": "text/html"}, "<html>Hello</html>")
    assert "not JSON: '<html>Hello</html>'; is this an OpenAI-style server?" in refused(fake, capsys, "--non-stream")


def test_r9_calls_that_a_full_server_turns_away_are_counted_with_their_retry_after(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.capacity, fake.first_delay = 2, 0.3
    status, out = run(capsys, "--port", str(fake.port), "--concurrency", "6", "--requests", "6", "--max-tokens", "2", "--json")
    report = json.loads(out)
    assert status == 1 and (report["requests"], report["failures"], report["total_tokens"]) == (6, 4, 4)
    assert report["errors"] == {"status 429 from /v1/chat/completions: the queue is full; Retry-After: 7 s": 4}


def test_a_cut_stream_says_how_far_it_came(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.cut_after = 2
    status, out = run(capsys, "--port", str(fake.port), "--requests", "3", "--max-tokens", "4")
    assert status == 1 and "error (3x): the server cut the connection after 2 pieces of text" in out
    fake.chunked = False
    status, out = run(capsys, "--port", str(fake.port), "--requests", "3", "--max-tokens", "4")
    assert status == 1 and "error (3x): the stream ended without [DONE] after 2 pieces of text" in out


def test_a_server_that_knows_the_newer_name_of_the_limit_alone(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.newer_limit = True
    status, out = run(capsys, "--port", str(fake.port), "--requests", "2", "--max-tokens", "3", "--json")
    assert status == 0 and json.loads(out)["total_tokens"] == 6
    assert "max_tokens" not in fake.bodies[-1] and fake.bodies[-1]["max_completion_tokens"] == 3


def test_no_profile_is_an_error(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.profiles = False
    assert "--profile: status 404 from /albatross/profile: no such page" in refused(fake, capsys, "--profile", "--quiet", "--requests", "1")
