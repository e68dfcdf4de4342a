"""The command that builds files for other machines (REQ-83), from the place where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kernels.toolkit import make_sources, make_toolkit, make_torch

from albatross_plugin.kernel_loader.context import context_for
from albatross_plugin.kernel_loader.load import kernels_folder
from albatross_plugin.kernel_loader.manifest import choose, find_prebuilt, read_manifest

SCRIPT = kernels_folder() / "build_albatross_kernel.py"


@pytest.fixture
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_albatross_kernel", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_runs_as_a_script() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, timeout=60, check=True)
    for option in ("--arch", "--output-root", "--max-jobs", "--timeout"):
        assert option in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="the tools of this test are shell scripts")
def test_req_83_files_and_rows_are_made(builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_torch(tmp_path / "torch")
    make_sources(tmp_path / "here" / "csrc")
    monkeypatch.setattr(builder, "cuda_torch_facts", lambda: facts)
    monkeypatch.setattr(builder, "HERE", tmp_path / "here")
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    output = tmp_path / "output"
    assert builder.main(["--arch", "sm80,sm_90,compute120", "--output-root", str(output)]) == 0
    entries, rejected = read_manifest(output)
    assert rejected == []
    assert sorted(entry.context.arch for entry in entries) == ["compute120", "compute80", "compute90", "sm80", "sm90"]
    for card, taken in (("sm90", "sm90"), ("sm86", "compute80"), ("sm100", "compute90"), ("sm121", "compute120")):
        entry = find_prebuilt(context_for(facts, card), output).entry
        assert entry is not None and entry.context.arch == taken
        assert entry.path.startswith(f"prebuilt/{facts.version}/{entry.context.platform}/{entry.context.python_abi}/")
    assert choose(context_for(facts, "sm75"), entries).entry is None


def test_what_cannot_be_built_ends_with_a_sentence(builder: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch could build")
    assert builder.main(["--arch", "sm90", "--output-root", str(tmp_path)]) == 1
    assert "install a CUDA build of it to build kernels" in caplog.text
    assert list(tmp_path.iterdir()) == []
