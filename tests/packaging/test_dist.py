"""The built wheel and source archive: what is in them, and what installing the wheel does to an empty environment."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from fresh import run_python

DIST = Path(os.environ["ALBATROSS_DIST"])
ROOT = Path(__file__).parents[2]
# Each file of the page by its place in the wheel: without one of them the page stays empty.
PAGE = [path.relative_to(ROOT).as_posix() for path in (ROOT / "albatross_plugin" / "serving" / "ui").iterdir() if path.is_file()]
HEAVY = ("torch", "fastapi", "starlette", "pydantic", "uvicorn", "numpy", "rwkv")


def only(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def wheel_names() -> set[str]:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        return set(wheel.namelist())


def metadata() -> email.message.Message:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_wheel_runs_on_every_platform() -> None:
    assert only("*.whl").name.endswith("-py3-none-any.whl")


def test_wheel_holds_the_packages_and_nothing_else() -> None:
    names = wheel_names()
    tops = {name.split("/")[0] for name in names}
    assert {"albatross_plugin", "host_stub"} == {top for top in tops if not top.endswith(".dist-info")}
    for name in (
        "albatross_plugin/py.typed",
        "albatross_plugin/hooks.py",
        "albatross_plugin/engine/scheduler.py",
        "albatross_plugin/_kernels/README.md",
        "albatross_plugin/_kernels/manifest.json",
        "albatross_plugin/_kernels/build_albatross_kernel.py",
        "albatross_plugin/_kernels/csrc/launch.h",
        "albatross_plugin/_kernels/csrc/ops.cpp",
        "albatross_plugin/_kernels/csrc/wkv.cu",
        "albatross_plugin/kernel_loader/load.py",
        *PAGE,
        "host_stub/__main__.py",
        "host_stub/demo.py",
        "host_stub/hookspecs.py",
    ):
        assert name in names
    assert "albatross_plugin/serving/ui/index.html" in PAGE
    strays = [name for name in names if name.endswith((".pth", ".gguf", ".pyc", "ruff.toml", ".so", ".pyd"))]
    assert strays == [] and not any("/tests/" in name for name in names)


def test_wheel_carries_the_licence_and_the_entry_point() -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        names = wheel.namelist()
        (licence,) = (name for name in names if name.endswith(".dist-info/licenses/docs/LICENSE"))
        text = wheel.read(licence).decode()
        (points,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt"))
    assert "Apache License" in text and "the albatross-plugin authors" in text
    assert "[rwkv_runner]\nalbatross = albatross_plugin.hooks" in points


def test_base_requirements_hold_neither_torch_nor_fastapi() -> None:
    needs = [need for need in metadata().get_all("Requires-Dist", []) if "extra ==" not in need]
    assert sorted(need.split(">")[0] for need in needs) == ["pluggy", "pyrwkv-tokenizer"]
    extras = set(metadata().get_all("Provides-Extra", []))
    assert {"torch", "host", "test", "metrics", "bench"} <= extras
    pinned = [need for need in metadata().get_all("Requires-Dist", []) if "==" in need.split(";")[0] or "<" in need.split(";")[0]]
    assert pinned == []


def test_source_archive_holds_what_its_tests_need() -> None:
    with tarfile.open(only("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "pyproject.toml",
        "tox.ini",
        "README.md",
        "docs/LICENSE",
        "kernels/README.md",
        "kernels/csrc/common.cuh",
        "tests/conftest.py",
        "albatross_plugin/hooks.py",
    ):
        assert name in names
    assert not any(name.startswith((".tox", ".git/", "shared")) for name in names)


@pytest.mark.timeout(300)
def test_installing_into_an_empty_environment_brings_nothing_heavy(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    python = scripts / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(only("*.whl"))], check=True, timeout=250)
    said = run_python(
        f"""
import importlib.metadata, importlib.util
print([name for name in {HEAVY!r} if importlib.util.find_spec(name)])
(point,) = importlib.metadata.entry_points(group="rwkv_runner")
hooks = point.load()
strategy = hooks.rwkv_runner_parse_strategy(strategy="albatross device=cpu")
try:
    hooks.rwkv_runner_create_model(strategy=strategy, model_path="none.pth", tokenizer_path="")
except Exception as error:
    print(type(error).__name__)
from albatross_plugin.tokenizer import WorldTokenizer, find_vocabulary
print(WorldTokenizer(find_vocabulary(None)).encode("\\n\\nUser:"))
""",
        tmp_path,
        python=python,
    )
    assert said.splitlines() == ["[]", "EngineInitError", "[261, 24281, 59]"]
