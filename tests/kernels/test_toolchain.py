"""Each tool that is missing or does not fit is one sentence that says what to do (KRN-2)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kernels.toolkit import make_toolkit, make_torch, path_with, script

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.context import TorchFacts
from albatross_plugin.kernel_loader.toolchain import Toolchain, find_toolchain

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools of these tests are shell scripts")

TOOLS = ("sh", "c++", "ninja")


def find(facts: TorchFacts, folder: Path, path: str, arch: str = "sm90", **environ: str) -> Toolchain:
    return find_toolchain(facts, [arch], folder, {"PATH": path, **environ}, packaged_ninja=lambda: None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_toolkit(tmp_path / "cuda with space")


@pytest.fixture
def facts(tmp_path: Path) -> TorchFacts:
    return make_torch(tmp_path / "torch")


def test_all_tools_are_found(tmp_path: Path, home: Path, facts: TorchFacts) -> None:
    tools = find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=home))
    assert tools.nvcc == str(home / "bin" / "nvcc") and tools.nvcc_version == "13.0"
    assert tools.cuda_include == home / "include" and tools.cudart == home / "lib64" / "libcudart.so"
    assert find(facts, tmp_path, path_with(tmp_path / "other", *TOOLS), CUDA_HOME=str(home)) == tools.__class__(
        tools.nvcc, "13.0", home / "include", tools.cudart, str(tmp_path / "other" / "c++"), str(tmp_path / "other" / "ninja")
    )


def test_a_script_on_path_leads_to_its_toolkit(tmp_path: Path, home: Path, facts: TorchFacts) -> None:
    path = path_with(tmp_path / "bin", *TOOLS)
    script(tmp_path / "bin" / "nvcc", f'#!/bin/sh\nexec "{home}/bin/nvcc" "$@"\n')
    assert find(facts, tmp_path, path).cuda_include == home / "include"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("c++", r"a C\+\+ compiler is missing: install g\+\+"),
        ("ninja", r"ninja is missing: pip install ninja \(Ninja is required to load C\+\+ extensions\)"),
    ],
)
def test_krn_2_a_missing_tool(tmp_path: Path, home: Path, facts: TorchFacts, missing: str, said: str) -> None:
    path = path_with(tmp_path / "bin", *(name for name in TOOLS if name != missing), home=home)
    with pytest.raises(DeviceError, match=rf"^{said}[^;\n]*\.$"):
        find(facts, tmp_path, path)


def test_krn_2_no_nvcc(tmp_path: Path, facts: TorchFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    # This machine may have a toolkit in the usual place.
    monkeypatch.setattr("albatross_plugin.kernel_loader.toolchain._executable", lambda folder, name: None)
    with pytest.raises(DeviceError, match=r"^nvcc is missing: install the CUDA 13\.0 toolkit, and set CUDA_HOME[^;\n]*\.$"):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS))


def test_krn_2_everything_missing_is_said_at_once(tmp_path: Path, facts: TorchFacts) -> None:
    with pytest.raises(DeviceError) as caught:
        find(facts, tmp_path, str(tmp_path / "nothing"), CUDA_HOME="/nowhere")
    text = str(caught.value)
    assert "CUDA_HOME=/nowhere holds no bin/nvcc: correct the variable or unset it" in text
    assert "C++ compiler" in text and "ninja" in text and "\n" not in text


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_krn_2_a_wrong_cuda_home(tmp_path: Path, home: Path, facts: TorchFacts, variable: str) -> None:
    path = path_with(tmp_path / "bin", *TOOLS, home=home)
    with pytest.raises(DeviceError, match=rf"^{variable}=/nowhere holds no bin/nvcc"):
        find(facts, tmp_path, path, **{variable: "/nowhere"})


def test_krn_2_a_compiler_that_is_named_and_not_there(tmp_path: Path, home: Path, facts: TorchFacts) -> None:
    with pytest.raises(DeviceError, match="^CXX=g..-99 is no program"):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=home), CXX="g++-99")


def test_krn_2_another_major_version_of_cuda(tmp_path: Path, facts: TorchFacts) -> None:
    old = make_toolkit(tmp_path / "old", version="12.4")
    with pytest.raises(DeviceError, match=r"is of CUDA 12\.4, but torch 2\.11\.0\+cu130 was built with CUDA 13\.0: install"):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=old))
    newer = make_toolkit(tmp_path / "newer", version="13.4")
    assert find(facts, tmp_path, path_with(tmp_path / "bin2", *TOOLS, home=newer)).nvcc_version == "13.4"


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("sm120", r"cannot compile for sm120: install a newer CUDA toolkit, or set ALBATROSS_KERNEL_ARCH=compute90\.$"),
        ("sm75", r"cannot compile for sm75: install an older CUDA toolkit\.$"),
    ],
)
def test_krn_2_a_card_that_nvcc_does_not_know(tmp_path: Path, facts: TorchFacts, arch: str, said: str) -> None:
    home = make_toolkit(tmp_path / "cuda", archs="80 90")
    with pytest.raises(DeviceError, match=said):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=home), arch)


def test_krn_2_the_list_of_architectures_for_torch_extensions_does_not_count(tmp_path: Path, home: Path, facts: TorchFacts) -> None:
    for value in ("foo", "12.0", ""):
        assert find(facts, tmp_path, path_with(tmp_path / f"bin{value}", *TOOLS, home=home), TORCH_CUDA_ARCH_LIST=value).nvcc


@pytest.mark.parametrize("gone", ["include/cuda_runtime_api.h", "lib64/libcudart.so"])
def test_krn_2_a_toolkit_without_its_development_files(tmp_path: Path, home: Path, facts: TorchFacts, gone: str) -> None:
    (home / gone).unlink()
    with pytest.raises(DeviceError, match=f"missing under {home}: install the toolkit's development files"):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=home))


def test_krn_2_an_nvcc_that_does_not_run(tmp_path: Path, home: Path, facts: TorchFacts) -> None:
    script(home / "bin" / "nvcc", "#!/bin/sh\nexit 127\n")
    with pytest.raises(DeviceError, match=r"nvcc does not run: reinstall the CUDA 13\.0 toolkit"):
        find(facts, tmp_path, path_with(tmp_path / "bin", *TOOLS, home=home))
