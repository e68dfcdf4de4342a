from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pluggy
import pytest
from host.word_plugin import WordModel, WordPlugin

from host_stub.models import AbstractRWKV
from host_stub.plugins import Plugins, missing_surface

GROUP = "rwkv_runner"
GOOD = """
import pluggy
hookimpl = pluggy.HookimplMarker("rwkv_runner")
@hookimpl
def rwkv_runner_strategies():
    return [{"name": "good"}]
"""
BROKEN = {
    "import_error": "import no_such_module_at_all",
    "os_error": "raise OSError('libtorch_cpu.so: cannot open shared object file\\nsecond line')",
    "panic": "class Panic(BaseException): pass\nraise Panic('out of a native module')",
    "syntax": "def (",
    "exit": "import sys\nsys.exit('no accelerator')",
    "foreign_argument": GOOD.replace("strategies()", "strategies(moon)"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def point(folder: Path, name: str, text: str) -> EntryPoint:
    (folder / f"plg_{name}.py").write_text(text, encoding="utf-8")
    return EntryPoint(name, f"plg_{name}", GROUP)


def test_plg_1_each_broken_plugin_costs_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    points = [point(folder, name, text) for name, text in BROKEN.items()]
    points += [EntryPoint("missing", "plg_not_there", GROUP), point(folder, "good", GOOD)]
    plugins = Plugins()
    with caplog.at_level(logging.INFO):
        plugins.load(points)
    failures = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(failures) == len(BROKEN) + 1
    assert all("\n" not in line for line in failures)
    assert [name for name in [*BROKEN, "missing"] if not any(f"plugin {name} " in line for line in failures)] == []
    assert plugins.strategies() == [{"name": "good"}]
    assert "found plugin good" in caplog.text and "entry point rwkv_runner" in caplog.text


def test_a_plugin_name_is_taken_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    plugins.load([point(folder, "good", GOOD), EntryPoint("good", "plg_good", GROUP)])
    assert len(plugins.manager.get_plugins()) == 1
    assert "another plugin has this name" in caplog.text


def test_the_user_may_stop_a_load(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Plugins().load([point(folder, "stop", "raise KeyboardInterrupt")])


def test_a_hook_that_fails_leaves_the_others_in_place(caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        @pluggy.HookimplMarker(GROUP)
        def rwkv_runner_status(self, model: object) -> None:
            raise RuntimeError("no status today")

    plugins = Plugins()
    plugins.register(WordPlugin(), "words")
    plugins.register(Bad(), "bad")
    assert plugins.status(None) == {"words": {"loaded": False, "loading": False}}
    assert "plugin bad failed in rwkv_runner_status: RuntimeError: no status today" in caplog.text


def test_req_19_model_types_become_virtual_subclasses_and_are_checked_once(caplog: pytest.LogCaptureFixture) -> None:
    class Half:
        def generate(self) -> None: ...

        def __len__(self) -> int:
            return 0

    class Brings:
        @pluggy.HookimplMarker(GROUP)
        def rwkv_runner_model_types(self) -> list[type]:
            return [Half]

    plugins = Plugins()
    plugins.register(WordPlugin(), "words")
    plugins.register(Brings(), "brings")
    plugins.register_model_types()
    plugins.register_model_types()
    assert issubclass(WordModel, AbstractRWKV) and issubclass(Half, AbstractRWKV)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "run_rnn()" in lines[0] and "__len__" in lines[0]
    assert missing_surface(WordModel) == []


def test_plg_3_the_host_starts_without_torch() -> None:
    """Discovery and the routes load no torch, whatever is installed."""
    code = (
        "import sys, host_stub.app as a; a.create_app(); print('torch' in sys.modules, 'rwkv' in sys.modules, 'xllamacpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False"] * 3
