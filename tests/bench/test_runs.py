"""The long measurements in small, and the smoke check, each from its command line against real servers."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from stub import StubHost

from albatross_plugin.bench.albatross_api_benchmark import main
from albatross_plugin.bench.checkpoints import SHAPES, checkpoint
from albatross_plugin.bench.cpu_host_comparison import Incomplete, prompt, summarize
from albatross_plugin.bench.openai_client import Generation

SMOKE = Path(__file__).parents[1] / "manual_albatross_smoke.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("torch", "rwkv", "fastapi", "pyrwkv_tokenizer"):
        peers.need(name)
    return tmp_path_factory.mktemp("models")


def run(module: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", f"albatross_plugin.bench.{module}", *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return done.returncode, done.stdout


def no_machine_paths(text: str, *folders: Path) -> bool:
    return not any(str(folder) in text for folder in folders) and not re.search(r"/(home|root|tmp|work)/", text)


def test_comparison_writes_its_log(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "comparison.log"
    words = ("--pairs", "1", "--requests", "3", "--max-tokens", "4", "--shape", "small", "--cache", str(cache), "--log", str(log))
    _, out = run("cpu_host_comparison", *words, cwd=tmp_path)
    text = log.read_text(encoding="utf-8")
    assert text == out and no_machine_paths(text, cache, tmp_path)
    for words_of in (r"OMP_WAIT_POLICY=passive .*OMP_NUM_THREADS=1", "versions: Python 3", r"machine: \d+ cores", "RWKV_JIT_ON=1"):
        assert re.search(words_of, text)
    assert len(re.findall(r"^pair 1  (albatross|rwkv) ", text, re.MULTILINE)) == 4
    row = re.search(r"\| at once, tokens/s \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| at least 4 \|", text)
    assert row is not None and float(row[3]) == pytest.approx(float(row[1]) / float(row[2]), rel=0.02)


def test_memory_run_reports_a_level(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "memory.log"
    words = ("--requests", "40", "--level-only", "--allow", "10000", "--cache", str(cache), "--log", str(log))
    status, out = run("memory_run", *words, cwd=tmp_path)
    text = log.read_text(encoding="utf-8")
    assert status == 0 and text == out and no_machine_paths(text, cache, tmp_path)
    assert len(re.findall(r"after +\d+ requests: [\d.]+ MB", text)) == 20 and re.search(r"memory changed by [+-][\d.]+ MB", text)


@pytest.fixture(scope="module")
def host() -> Iterator[StubHost]:
    with StubHost(environ={"ALBATROSS_PROFILE": "1"}) as running:
        yield running


def smoke(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(SMOKE), *words], capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_req_126_to_129_smoke_check_and_benchmark_on_the_stub_host(
    host: StubHost, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoint(SHAPES["small"], cache))
    place = ["--port", host.url.rpartition(":")[2]]
    words = [*place, "--workers", "1", "--batch", "16", "--max-tokens", "8"]
    status, out = smoke("--model", model, *words, "--device", "cpu", "--timeout", "60")
    assert status == 0, out
    assert "/switch-model 'albatross workers=1 batch=16 device=cpu': 200\n" in out
    for line in (
        r"/v1/chat/completions: 200$",
        r"  text: .+, finish_reason: \w+, \d tokens in",
        r"/v1/chat/completions \(stream\): 200$",
    ):
        assert re.search(line, out, re.MULTILINE), line
    assert re.search(
        r"  first text: .+ after [\d.]+ s, \d pieces in all\n  ended with \[DONE\], finish_reason: \w+\nsmoke check passed\n", out
    )
    assert any("Albatross engine initialized: workers=1, batch_size=16" in line for line in host.log)
    assert main([*place, "--concurrency", "2,16", "--requests", "16", "--max-tokens", "8", "--no-stop", "--profile", "--json"]) == 0
    for report, concurrency in zip(json.loads(capsys.readouterr().out), (2, 16), strict=True):
        assert (report["concurrency"], report["requests"], report["failures"]) == (concurrency, 16, 0)
        assert (report["total_tokens"], report["tokens_counted_by"], report["profile"]["tokens"]) == (128, "usage", 128)
        assert 0 < report["token_gap_s"]["p50"] <= report["latency_s"]["max"] <= report["wall_s"] and report["first_token_s"]["p99"] > 0


def test_req_126_smoke_check_says_what_went_wrong(host: StubHost) -> None:
    place = ["--port", host.url.rpartition(":")[2]]
    status, out = smoke("--model", "nothing.pth", *place, "--device", "cpu")
    assert status == 1 and "/switch-model 'albatross workers=1 batch=16 device=cpu': 500\n" in out
    assert (
        "failed to load: Albatross engine initialization failed: model file not found: nothing.pth" in out and "smoke check failed" in out
    )
    # Nothing is loaded now; without --model nothing is switched.
    status, out = smoke(*place)
    assert status == 1 and "/switch-model: left out; asking 'rwkv'" in out and out.count("status 400 from /v1/chat/completions: ") == 2


def test_req_126_smoke_check_of_other_servers(fake: Any) -> None:
    status, out = smoke("--base-url", f"{fake.url}/v1", "--max-tokens", "3")
    assert status == 0 and "asking 'fake-model'" in out and "first text: 'wörd0 '" in out
    fake.cut_after = 1
    status, out = smoke("--base-url", f"{fake.url}/v1", "--max-tokens", "3")
    assert status == 1 and "first text: 'wörd0 '" in out and "the server cut the connection after 1 pieces of text" in out


def test_req_126_smoke_check_without_a_server() -> None:
    status, out = smoke("--model", "m.pth", "--port", "9")
    assert status == 1 and "no answer: no connection to 127.0.0.1:9: " in out and "is the server started" in out


def test_smoke_check_is_not_collected() -> None:
    assert not SMOKE.name.startswith("test_") and "main" in runpy.run_path(str(SMOKE), run_name="imported")


def whole(tokens: int, started: float, first: float, ended: float) -> Generation:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return Generation(started=started, first=first, ended=ended, status=200, usage=usage, finish_reason="length", whole=True)


def test_figures_of_a_burst() -> None:
    one = summarize([whole(10, 0.0, 1.0, 4.0), whole(10, 1.0, 3.0, 5.0)], 10)
    assert one.rate == pytest.approx(4.0) and one.first_latencies == [1.0, 2.0] and one.last_over_first == 2.0 and one.prompt_tokens == 10


def test_a_cut_answer_gives_no_figure() -> None:
    with pytest.raises(Incomplete, match="9 of 10"):
        summarize([whole(9, 0.0, 1.0, 2.0)], 10)


def test_prompts_differ_from_their_first_word() -> None:
    prompts = [prompt(number) for number in range(16)]
    assert len({text.split()[0] for text in prompts}) == 16 and max(map(len, prompts)) < 1.3 * min(map(len, prompts))
