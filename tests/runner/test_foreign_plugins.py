"""Plugins of others beside this one in the launcher: what fails in one costs a line in the log, and nothing of the others."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.plugins import Plugins

OWN = EntryPoint("albatross", "albatross_plugin.hooks", "rwkv_runner")
HOOKS = "import pluggy\nhookimpl = pluggy.HookimplMarker('rwkv_runner')\n"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Plugins:
    """This plugin and one whose module has the text that the test's parameter gives."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"foreign_{abs(hash(request.param))}"
    (tmp_path / f"{name}.py").write_text(request.param)
    return Plugins([OWN, EntryPoint("foreign", name, "rwkv_runner")])


@pytest.mark.parametrize("beside", ["import sys\nsys.exit('no accelerator\\nat all')"], indirect=True)
def test_an_import_that_exits_costs_one_line(beside: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    lines = [record.getMessage() for record in caplog.get_records("setup") if record.levelno == logging.ERROR]
    assert len(lines) == 1 and "plugin foreign " in lines[0] and lines[0].endswith("was not loaded: SystemExit: no accelerator at all")
    assert [each["name"] for each in beside.strategies()] == ["albatross"]


WRONG = """
@hookimpl
def rwkv_runner_strategies(): return 5
@hookimpl
def rwkv_runner_device_modes(): return [1]
@hookimpl
def rwkv_runner_status(model): return ["no mapping"]
@hookimpl
def rwkv_runner_model_types(): return [int, "x"]
@hookimpl
def rwkv_runner_routers(host): return [object()]
@hookimpl
def rwkv_runner_parse_strategy(strategy): raise ValueError("what is " + strategy)
"""


@pytest.mark.parametrize("beside", [HOOKS + WRONG], indirect=True)
def test_wrong_answers_cost_one_line_each_and_nothing_of_the_others(beside: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("fastapi")
    own = Plugins([OWN])

    def failed(name: str) -> bool:
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        caplog.clear()
        return len(lines) == 1 and lines[0].startswith(f"plugin foreign failed in rwkv_runner_{name}: ")

    def silent() -> bool:
        return not caplog.records

    for told in (failed, lambda _: silent()):
        assert beside.strategies() == own.strategies() != [] and told("strategies")
        assert beside.device_modes() == own.device_modes() != [] and told("device_modes")
        assert beside.status(None) == own.status(None) and told("status")
    assert beside.routers(RunnerHost(beside)) != [] and failed("routers")
    assert beside.parse("albatross batch=3 device=cpu").batch_size == 3


UNWRITABLE = """
@hookimpl
def rwkv_runner_strategies(): return [{"name": VALUE}]
@hookimpl
def rwkv_runner_status(model): return {"foreign": VALUE}
"""


@pytest.mark.parametrize(
    "beside", [HOOKS + UNWRITABLE.replace("VALUE", value) for value in ("object()", "float('nan')", "'\\ud800'")], indirect=True
)
def test_what_cannot_be_written_as_json_is_left_out(beside: Plugins) -> None:
    """The Runner's own answer would be lost with it."""
    own = Plugins([OWN])
    assert beside.strategies() == own.strategies() and beside.status(None) == own.status(None)


WRITABLE = """
import datetime, pathlib
@hookimpl
def rwkv_runner_strategies(): return [{"name": "words", "since": datetime.date(2026, 1, 2), "path": pathlib.PurePosixPath("a/b"), "of": {1}}]
@hookimpl
def rwkv_runner_parse_strategy(strategy):
    if strategy.startswith("words"): raise ValueError("words needs a size")
"""


@pytest.mark.parametrize("beside", [HOOKS + WRITABLE], indirect=True)
def test_what_the_runner_could_write_is_left_in(beside: Plugins) -> None:
    (theirs,) = [each for each in beside.strategies() if each["name"] == "words"]
    assert theirs == {"name": "words", "since": "2026-01-02", "path": "a/b", "of": [1]}
    with pytest.raises(ValueError, match="words needs a size"):
        beside.parse("words")


CHANGING = """
count = 0
@hookimpl
def rwkv_runner_status(model):
    global count
    count += 1
    raise ValueError(f"{count} times at {object()}")
@hookimpl
def rwkv_runner_device_modes():
    class Mute(Exception):
        def __str__(self): raise RuntimeError("no text")
    raise Mute
"""


@pytest.mark.parametrize("beside", [HOOKS + CHANGING], indirect=True)
def test_a_text_that_counts_is_told_once_and_one_without_a_text_does_no_harm(beside: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert "foreign" not in beside.status(None) and beside.device_modes()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 2 and "1 times at" in lines[0] and lines[1].endswith("Mute: its text cannot be had (RuntimeError)")


@pytest.mark.parametrize("beside", [HOOKS + WRONG], indirect=True)
def test_wrong_model_types_leave_the_others_in_place(beside: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    assert [each.__name__ for each in beside.model_types()] == ["AlbatrossRWKV"]
    assert "plugin foreign failed in rwkv_runner_model_types: TypeError: 'x' is no class" in caplog.text


@pytest.mark.parametrize("beside", [HOOKS + WRONG.replace("return 5", "return [{'name': 'Theirs', 'aliases': ['its']}]")], indirect=True)
def test_a_plugin_says_what_is_wrong_with_a_strategy_that_it_offers(beside: Plugins, caplog: pytest.LogCaptureFixture) -> None:
    for strategy in ("theirs 3", "ITS"):
        with pytest.raises(ValueError, match=f"what is {strategy}"):
            beside.parse(strategy)
    for strategy in ("cpu fp32", "", " "):
        assert beside.parse(strategy) is None
    assert caplog.text.count("plugin foreign failed in rwkv_runner_parse_strategy: ValueError: what is") == 3
