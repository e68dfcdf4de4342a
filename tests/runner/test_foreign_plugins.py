"""Plugins of others beside this one in the launcher: what fails in one costs a line in the log, and nothing of the others."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from albatross_plugin.runner.plugins import Plugins

OWN = EntryPoint("albatross", "albatross_plugin.hooks", "rwkv_runner")


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
