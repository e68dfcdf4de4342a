"""docs/hosts.md: its host, put together from the page, serves this plugin; and the stub host is what the page says of it."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest
from docs.pages import ROOT, fences, rows

import host_stub.hookspecs
from host_stub.hookspecs import PROJECT, HookSpecs

PAGE = "docs/hosts.md"
BLOCKS = [content for language, content in fences(PAGE) if language == "python"]
HOOKS = [name for name, _ in inspect.getmembers(HookSpecs, inspect.isfunction)]
SERVE = """
import socket, uvicorn
bound = socket.create_server(("127.0.0.1", 0))
print(bound.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])
"""


def lines_of(code: str) -> list[str]:
    """Those that do something."""
    return [line for line in code.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]


def test_the_first_block_is_about_twenty_lines() -> None:
    assert len(BLOCKS) == 2 and 15 <= len(lines_of(BLOCKS[0])) <= 25


def test_the_stub_host_calls_each_hook_where_the_page_says() -> None:
    table = rows(PAGE, "hook")
    assert sorted(row[0].strip("`") for row in table) == sorted(HOOKS)
    for hook, file, _ in table:
        assert hook.strip("`") in (ROOT / file.strip("`")).read_text(encoding="utf-8"), hook
    loading = (ROOT / "host_stub/plugins.py").read_text(encoding="utf-8")
    for step in ("pluggy.PluginManager(PROJECT)", "add_hookspecs(HookSpecs)", "entry_points(group=PROJECT)", "point.load(), point.name"):
        assert step in BLOCKS[0] and step in loading


def test_what_a_host_must_call_is_called() -> None:
    called = set(re.findall(r"hook\.(rwkv_runner_\w+)", "".join(BLOCKS)))
    # Names for menus, and for hosts that have base classes of their own.
    assert set(HOOKS) - called == {"rwkv_runner_strategies", "rwkv_runner_device_modes", "rwkv_runner_model_types"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    tiny = pytest.importorskip("tiny")
    assert [point.value for point in entry_points(group=PROJECT)] == ["albatross_plugin.hooks"]
    folder = tmp_path_factory.mktemp("host")
    shutil.copy(Path(host_stub.hookspecs.__file__), folder / "hookspecs.py")
    # Nothing of the stub host may be needed.
    (folder / "host.py").write_text("import sys\nsys.modules['host_stub'] = None\n" + "\n\n".join(BLOCKS) + SERVE, encoding="utf-8")
    tiny.write(folder / "random.pth", tiny.random_checkpoint())
    process = subprocess.Popen([sys.executable, "-W", "error", "host.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the host of the page did not start"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as asking:
            yield asking
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_the_host_of_the_page_serves_the_plugin(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    assert client.post("/switch-model", json={"model": "random.pth", "strategy": "cuda fp16"}).status_code == 501
    failed = client.post("/switch-model", json={"model": "none.pth", "strategy": "albatross device=cpu"})
    assert failed.status_code == 500
    assert failed.json()["detail"] == "failed to load: Albatross engine initialization failed: model file not found: none.pth"
    assert client.post("/v1/chat/completions", json=body).status_code == 501
    assert client.post("/switch-model", json={"model": "random.pth", "strategy": "albatross device=cpu batch=4"}).json() == "success"
    whole = client.post("/v1/chat/completions", json=body).json()
    text = whole["choices"][0]["message"]["content"]
    assert text and whole["usage"]["completion_tokens"] == 6
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events[-1] == "[DONE]" and len(events) > 2
    deltas = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(deltas) == text
    refused = client.post("/v1/chat/completions", json={**body, "temperature": "warm"})
    assert refused.status_code == 400 and "temperature" in refused.json()["error"]["message"]
    assert client.get("/status").json()["albatross"]["slots"]["total"] == 4
    # The plugin's own routes are there.
    assert client.get("/albatross/profile").status_code == 200
    assert client.post("/switch-model", json={"model": ""}).json() == "success"
    assert client.post("/v1/chat/completions", json=body).status_code == 501 and client.get("/status").json() == {}
