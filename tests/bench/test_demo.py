"""The demo as a user starts it, and the parts that judge and show its streams."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Generator
from pathlib import Path

import httpx
import peers
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_stub.demo_streams import Stream, aggregate_rate, most_at_once, new_streams
from host_stub.demo_view import PlainView, is_terminal, printable, row, timetable

Begin = Callable[..., "subprocess.Popen[str]"]
# Long enough that the first stream still runs when a busy machine has begun the last.
TOKENS = 40
SMALL = ("--layers", "1", "--width", "64", "--max-tokens", str(TOKENS))


def heed_interrupts() -> None:
    """A shell's background jobs ignore Ctrl-C, and hand that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("torch", "rwkv", "fastapi", "pyrwkv_tokenizer"):
        peers.need(name)
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Generator[Begin, None, None]:
    """Starts demos; ends them and whatever they left behind."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, cwd: Path = tmp_path) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", "host_stub.demo", *SMALL, "--cache", str(cache), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            env=environment,
            preexec_fn=None if sys.platform == "win32" else heed_interrupts,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in children:
                child.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The output up to a line with ``words``; the process ends the wait by ending."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(f"{words!r} was not printed:\n{text}")


def child_of(process: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(process.pid).children()
    return child


def test_demo_shows_plugin_overlap_and_ratio_and_keeps_the_host_until_ctrl_c(start: Begin) -> None:
    process = start("--keep")
    out = read_until(process, "print(chunk")
    assert re.search(r"found plugin albatross \(.+\) through entry point rwkv_runner", out)
    assert re.search(r"strategies on offer: .*albatross", out)
    assert "gibberish" in out
    assert "most streams at one moment: 16 of 16" in out and "most streams at one moment: 1 of 16" in out
    ratio = re.search(r"ratio: (\d+\.\d+)", out)
    assert ratio is not None and float(ratio.group(1)) > 0
    assert out.count(f"{TOKENS} tokens, ") == 32
    # Not a terminal: no control sequences.
    assert "\x1b" not in out
    address = re.search(r"keeps running at (http://127\.0\.0\.1:\d+)", out)
    assert address is not None
    url = address.group(1)
    assert f"curl -N {url}/v1/chat/completions" in out and f'base_url="{url}/v1"' in out
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
    host = child_of(process)
    if sys.platform == "win32":
        # A console's Ctrl-C cannot be sent to one process there; the fixture ends both.
        return
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not host.is_running()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without asking it")
def test_host_ends_with_a_demo_that_is_told_to_end(start: Begin) -> None:
    process = start()
    read_until(process, "2. Host:")
    host = child_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert not host.is_running()


def test_without_the_plugin_the_demo_says_so_and_fails(start: Begin, tmp_path: Path) -> None:
    """A package of the same name, first on the path of this folder, whose hooks do not load."""
    package = tmp_path / "albatross_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hooks.py").write_text("raise RuntimeError('out of order')\n")
    process = start(cwd=tmp_path)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "did not find the plugin" in out and "out of order" in out


def test_taken_port_ends_with_the_reason(start: Begin) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]))
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "the host did not start" in out and "cannot listen" in out


# --- the judges ---------------------------------------------------------------------------------------------------------


def stream(number: int, first: float | None, ended: float | None, tokens: int = 4) -> Stream:
    return Stream(number, "p", 4, started=0.0, first=first, ended=ended, tokens=tokens, finish_reason="length", whole=True)


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),
        ([(0, 2), (1, 3), (2.5, 4)], 2),
        ([(0, 9), (1, 8), (2, 3)], 3),
        ([(None, 5), (1, 2)], 1),
    ],
)
def test_most_at_once(spans: list[tuple[float | None, float]], most: int) -> None:
    assert most_at_once([stream(number, first, end) for number, (first, end) in enumerate(spans)]) == most


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12))
def test_most_at_once_agrees_with_looking_at_every_moment(spans: list[tuple[int, int]]) -> None:
    streams = [stream(number, first, first + length) for number, (first, length) in enumerate(spans)]
    looked = max((sum(s.first <= t < s.ended for s in streams) for t in range(41)), default=0)  # type: ignore[operator]
    assert most_at_once(streams) == looked


def test_aggregate_rate_counts_from_the_first_start_to_the_last_end() -> None:
    assert aggregate_rate([stream(1, 1, 2), stream(2, 1, 4, tokens=8)]) == pytest.approx(3.0)
    assert aggregate_rate([Stream(1, "p", 4)]) == 0.0


def test_complete_means_every_token_and_the_end_marker() -> None:
    whole = stream(1, 1, 2)
    assert whole.complete
    for name, value in (("tokens", 3), ("whole", False), ("finish_reason", "stop"), ("error", "gone")):
        broken = stream(1, 1, 2)
        setattr(broken, name, value)
        assert not broken.complete


def test_sixteen_different_prompts() -> None:
    assert len({each.prompt for each in new_streams(4)}) == 16


# --- what is shown ------------------------------------------------------------------------------------------------------


@given(st.text(max_size=60), st.integers(0, 30))
def test_printable_keeps_to_its_columns_and_moves_no_cursor(text: str, columns: int) -> None:
    shown = printable(text, columns)
    assert sum(2 if unicodedata.east_asian_width(char) in "WFA" else 1 for char in shown) <= columns
    assert not any(unicodedata.category(char)[0] == "C" for char in shown)


def test_printable_keeps_the_end() -> None:
    assert printable("one two\nthree", 9) == "two three" and printable("x" * 100, 3) == "xxx" and printable("世界", 3) == "界"


def test_row_fits_the_window() -> None:
    live = stream(3, 1.0, None, tokens=2)
    live.text = "世界" * 80
    text = row(live, 80)
    assert text.startswith("  3 [########........]   2/4") and len(text) + sum("世" <= c <= "界" for c in text) <= 80
    assert "waiting" in row(Stream(1, "p", 4), 80)


def test_plain_view_tells_each_thing_once_in_order() -> None:
    out = io.StringIO()
    now = time.perf_counter()
    view = PlainView([stream(1, now + 2, now + 3), stream(2, now + 1, now + 4)], out)
    view.finish()
    view.finish()
    told = re.findall(r"request +(\d)  (first text|4 tokens)", out.getvalue())
    assert told == [("2", "first text"), ("1", "first text"), ("1", "4 tokens"), ("2", "4 tokens")]


def test_timetable_has_a_line_for_each_stream() -> None:
    lines = timetable([stream(1, 1, 2), Stream(2, "p", 4)])
    assert len(lines) == 4 and lines[1].split() == ["1", "0.00", "1.00", "2.00", "4"] and lines[2].split() == ["2", "-", "-", "-", "0"]


def test_a_file_is_no_terminal() -> None:
    assert not is_terminal(io.StringIO())
