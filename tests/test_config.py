"""EngineConfig: strategy over environment over default."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import albatross_plugin
from albatross_plugin.config import EngineConfig, environment_table
from albatross_plugin.strategy import AlbatrossStrategy


def test_defaults_without_environment(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.load(environ={}) == EngineConfig()
    assert (EngineConfig().workers, EngineConfig().batch, EngineConfig().device) == (1, 32, "cuda")
    assert caplog.messages == []


def test_req_99_disconnect_interval() -> None:
    assert EngineConfig.load(environ={}).disconnect_check_interval == 64
    assert EngineConfig.load(environ={"ALBATROSS_DISCONNECT_CHECK_INTERVAL": "8"}).disconnect_check_interval == 8


@pytest.mark.parametrize("value", ["0", "-3", "x", "1.5", "1" * 5000])
def test_req_99_a_bad_interval_is_the_default_and_one_warning(value: str, caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig.load(environ={"ALBATROSS_DISCONNECT_CHECK_INTERVAL": value})
    assert config.disconnect_check_interval == 64
    assert len(caplog.messages) == 1 and "ALBATROSS_DISCONNECT_CHECK_INTERVAL" in caplog.messages[0]


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_seconds_must_be_a_finite_number(value: str, caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.load(environ={"ALBATROSS_LOAD_TIMEOUT": value}).load_timeout == 300.0
    assert len(caplog.messages) == 1


def test_req_105_profile_switch(caplog: pytest.LogCaptureFixture) -> None:
    for text, value in [("1", True), ("TRUE", True), ("on", True), ("0", False), ("off", False), ("  1 ", True), ("", False)]:
        assert EngineConfig.load(environ={"ALBATROSS_PROFILE": text}).profile is value
    assert caplog.messages == []
    assert EngineConfig.load(environ={"ALBATROSS_PROFILE": "perhaps"}).profile is False
    assert len(caplog.messages) == 1


def test_the_strategy_goes_before_the_environment() -> None:
    environ = {"ALBATROSS_DEVICE": "CPU", "ALBATROSS_MAX_QUEUE": "7"}
    assert EngineConfig.load(AlbatrossStrategy(2, 8), environ).device == "cpu"
    config = EngineConfig.load(AlbatrossStrategy(2, 8, "cuda"), environ)
    assert (config.workers, config.batch, config.device, config.max_queue) == (2, 8, "cuda", 7)


def test_an_unknown_device_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineConfig.load(environ={"ALBATROSS_DEVICE": "tpu"}).device == "cuda"
    assert len(caplog.messages) == 1 and "'tpu'" in caplog.messages[0]


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBATROSS_MAX_QUEUE", "11")
    assert EngineConfig.load().max_queue == 11


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (7, 1), (8, 1), (16, 2), (32, 4), (960, 120)])
def test_req_46_admissions_per_step_are_an_eighth_of_the_batch(batch: int, count: int) -> None:
    assert EngineConfig(batch=batch).admissions_per_step == count
    assert EngineConfig(batch=batch, max_prefill_count=5).admissions_per_step == 5


def test_req_55_56_scheduler_limits() -> None:
    assert (EngineConfig().decode_prefill_ratio, EngineConfig().min_forward_seq_len) == (5, 10)


def test_limits_that_depend_on_the_device_and_the_machine() -> None:
    assert EngineConfig(device="cpu").pass_budget == 512 and EngineConfig(device="cuda").pass_budget == 4096
    assert EngineConfig(device="cpu", prefill_budget=9).pass_budget == 9
    assert EngineConfig(threads=3).cpu_threads == 3 and EngineConfig().cpu_threads >= 1


def test_settings_do_not_change_while_an_engine_runs() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().batch = 5  # type: ignore[misc]


def test_every_variable_is_in_the_table_and_can_be_set() -> None:
    table = environment_table()
    names = [name for name, _, _ in table]
    assert len(set(names)) == len(names) and all(name.startswith("ALBATROSS_") for name in names)
    for name, default, about in table:
        value = {"cuda": "cpu", "False": "1", "True": "0", "auto": "fp16"}.get(default, "7")
        changed = EngineConfig.load(environ={name: value})
        assert changed != EngineConfig(), name
        assert about.endswith(".")


def test_only_this_module_reads_the_environment() -> None:
    package = Path(albatross_plugin.__file__).parent
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "environ" in path.read_text(encoding="utf-8") or "getenv" in path.read_text(encoding="utf-8")
    }
    # Variables that are not ours steer compilers (PATH, CUDA_HOME, CXX, MAX_JOBS) and the host that is launched (RWKV_RUNNER_PARAMS).
    tools = {"kernel_loader/build.py", "kernel_loader/toolchain.py", "runner/launch.py"}
    assert readers - {"config.py"} - tools <= {reader for reader in readers if reader.startswith("bench/")}
    for name in tools:
        assert 'environ.get("ALBATROSS' not in (package / name).read_text(encoding="utf-8")


def test_reading_settings_imports_no_torch() -> None:
    code = "import sys, albatross_plugin.config as c; c.EngineConfig.load(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
