"""``python -m host_stub`` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fresh import run_python
from stub import StubHost

from host_stub.__main__ import parse_arguments
from host_stub.paths import resolve


def test_starts_prints_its_port_and_leaves() -> None:
    with StubHost("--backlog", "16", "--timeout-keep-alive", "5") as host:
        assert host.url.startswith("http://127.0.0.1:")
        assert any("found plugin albatross (albatross-plugin " in line and "entry point rwkv_runner" in line for line in host.log)
        assert host.client.get("/health").json()["model"] is None
        assert host.client.post("/exit").json() == "success"
        assert host.process.wait(50) == 0


def test_options_as_in_the_runner() -> None:
    options = parse_arguments([])
    assert (options.host, options.port, options.backlog, options.timeout_keep_alive, options.no_access_log) == (
        "127.0.0.1",
        8000,
        2048,
        120,
        False,
    )


def test_passive_waiting_is_set_before_torch() -> None:
    code = "import os, sys, host_stub.__main__ as m; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    environ = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environ)
    assert done.stdout.split() == ["passive", "False"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_ui_1_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    code = """if True:
        import resource
        from host_stub.server import raise_file_limit
        hard = min(600, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 100, hard))
        raise_file_limit()
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    """
    run_python(code, tmp_path)


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([sys.executable, "-m", "host_stub", "--port", port], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]


def test_an_open_stream_does_not_hold_the_exit_for_long(models: Path) -> None:
    with StubHost("--model", str(models / "random.pth"), "--strategy", "cpu fp32") as host:
        body = {"prompt": "Hello", "max_tokens": 100000, "stream": True, "temperature": 0}
        with host.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            assert httpx.post(host.url + "/exit", timeout=10).status_code == 200
            last = [line for line in lines if line][-1]
            assert json.loads(last[len("data: ") :])["error"]["code"] == "model_unavailable"
        # The tokens asked for would take many minutes; a busy machine needs some seconds to take the interpreter down.
        assert host.process.wait(20) == 0
        assert not any("Traceback" in line or "Cancel" in line for line in host.log)


STUCK = """
import time
import pluggy

hookimpl = pluggy.HookimplMarker("rwkv_runner")


class Stuck:
    @hookimpl
    def rwkv_runner_parse_strategy(self, strategy):
        return strategy if strategy == "stuck" else None

    @hookimpl
    def rwkv_runner_create_model(self, strategy):
        print("load entered", flush=True)
        time.sleep(600)


plugin = Stuck()
"""


def _stuck_host(folder: Path, *arguments: str) -> StubHost:
    (folder / "stuck_plugin.py").write_text(STUCK, encoding="utf-8")
    info = folder / "stuck_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck-plugin\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[rwkv_runner]\nstuck = stuck_plugin:plugin\n", encoding="utf-8")
    return StubHost(*arguments, environ={"PYTHONPATH": str(folder)})


def test_a_load_that_is_stuck_does_not_hold_the_exit(tmp_path: Path) -> None:
    with _stuck_host(tmp_path) as host, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(host.switch, "any.pth", "stuck")
        host.wait_for(lambda: any("load entered" in line for line in host.log), 30)
        assert httpx.post(host.url + "/exit", timeout=10).status_code == 200
        stopped = answer.result(15)
        assert stopped.status_code == 500 and stopped.json()["detail"] == "failed to load: the server is stopping"
        assert host.process.wait(15) == 0
        assert not any("Traceback" in line for line in host.log)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_ends_a_preload_that_is_stuck(tmp_path: Path) -> None:
    with _stuck_host(tmp_path, "--model", "any.pth", "--strategy", "stuck") as host:
        host.wait_for(lambda: any("load entered" in line for line in host.log), 30)
        host.process.terminate()
        assert host.process.wait(15) in (0, -signal.SIGTERM)


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "backend"
    for folder in (inner, tmp_path / "models", tmp_path / "build" / "bin" / "models"):
        folder.mkdir(parents=True)
    (tmp_path / "models" / "a.pth").touch()
    (tmp_path / "build" / "bin" / "models" / "b.pth").touch()
    for folder in (tmp_path, inner):
        monkeypatch.chdir(folder)
        assert Path(resolve("models/a.pth")) == tmp_path / "models" / "a.pth"
        assert Path(resolve("models/b.pth")) == tmp_path / "build" / "bin" / "models" / "b.pth"
    assert [resolve(path) for path in ("", "no.pth", "/no/such.pth", "a\0b")] == ["", "no.pth", "/no/such.pth", "a\0b"]
