"""What a host pays for looking whether the plugin is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh import run_python

LOAD = """
import json, sys, time
from importlib.metadata import entry_points
(point,) = (p for p in entry_points(group="rwkv_runner") if p.name == "albatross")
began = time.perf_counter()
hooks = point.load()
seconds = time.perf_counter() - began
"""
REGISTER = """
import pluggy
manager = pluggy.PluginManager("rwkv_runner")
manager.register(hooks, name="albatross")
"""


@pytest.mark.parametrize("devices", [None, ""])
def test_plg_3_loading_the_entry_point_is_fast_and_starts_nothing(tmp_path: Path, devices: str | None) -> None:
    code = f"""{LOAD}{REGISTER}
import multiprocessing, threading
hooks.rwkv_runner_strategies(), hooks.rwkv_runner_device_modes(), hooks.rwkv_runner_parse_strategy(strategy="albatross")
heavy = [name for name in ("torch", "fastapi", "starlette", "pydantic", "numpy", "rwkv", "pyrwkv_tokenizer") if name in sys.modules]
print(json.dumps([seconds, heavy, threading.active_count(), len(multiprocessing.active_children())]))
"""
    environ = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    runs = [json.loads(run_python(code, tmp_path, environ=environ)) for _ in range(3)]
    assert all(run[1:] == [[], 1, 0] for run in runs)
    # The best of three: the limit is about what is imported, not about the neighbours on this machine.
    assert min(run[0] for run in runs) < 0.2


def test_plg_1_a_broken_torch_is_met_only_when_a_model_is_made(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n", encoding="utf-8")
    model = tmp_path / "model.pth"
    model.write_bytes(b"weights")
    code = f"""{LOAD}{REGISTER}
strategy = hooks.rwkv_runner_parse_strategy(strategy="albatross device=cpu")
assert hooks.rwkv_runner_status(model=None) is None
try:
    hooks.rwkv_runner_create_model(strategy=strategy, model_path={str(model)!r}, tokenizer_path="")
except RuntimeError as error:
    print(type(error).__name__, error)
"""
    said = run_python(code, tmp_path, environ={"PYTHONPATH": str(broken.parent)})
    assert said.startswith("EngineInitError Albatross engine initialization failed: PyTorch cannot be imported")
    assert "libtorch_cpu.so" in said and len(said.splitlines()) == 1


def test_the_version_stands_in_one_place(tmp_path: Path) -> None:
    code = "import albatross_plugin, importlib.metadata as m; print(albatross_plugin.__version__ == m.version('albatross-plugin'))"
    assert run_python(code, tmp_path).strip() == "True"
