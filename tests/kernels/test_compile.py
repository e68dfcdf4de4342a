"""Every source compiles without a warning, for every kind of card. Needs nvcc and no card; with CI set, nvcc may not be missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from kernels.ptxas import table, usages

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.build import source_files
from albatross_plugin.kernel_loader.context import torch_facts
from albatross_plugin.kernel_loader.load import kernels_folder
from albatross_plugin.kernel_loader.ninja_file import cxx_command
from albatross_plugin.kernel_loader.toolchain import Toolchain, find_toolchain

pytest.importorskip("torch")

CARDS = ["sm80", "sm86", "sm89", "sm90", "sm100", "sm120"]
# Not promised, but compiled as long as nvcc still can.
OLD_CARDS = ["sm75"]
# Said of cards with fewer threads than the ones that the bound is meant for.
HARMLESS = ".minnctapersm will be ignored"
SOURCES = source_files(kernels_folder() / "csrc")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    try:
        return find_toolchain(torch_facts(), CARDS, tmp_path_factory.mktemp("scratch"))
    except DeviceError as error:
        pytest.skip(str(error))


def command(source: Path, tools: Toolchain, archs: list[str]) -> list[str]:
    if source.suffix == ".cpp":
        # A torch for the CPU has all headers but one of macros, which only matter on Windows.
        return [*cxx_command(tools, torch_facts(), False, ["C10_CUDA_NO_CMAKE_CONFIGURE_FILE"]), "-Wall", "-Wextra", str(source)]
    targets = [f"-gencode=arch=compute_{arch[2:]},code=sm_{arch[2:]}" for arch in archs]
    host = ["-Xcompiler", "-fPIC,-Wall,-Wextra"]
    return [tools.nvcc, "-ccbin", tools.cxx, "-std=c++17", "-O3", *targets, *host, "-Xptxas", "-v", "-c", str(source)]


Compiled = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def compiled(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Compiled]]]:
    """All sources at once, as many as there are cores; the largest first, so that none is left to run alone at the end."""
    folder = tmp_path_factory.mktemp("objects")
    known = subprocess.run([tools.nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    archs = [arch for arch in OLD_CARDS if f"sm_{arch[2:]}" in known] + CARDS

    def run(source: Path) -> Compiled:
        words = [*command(source, tools, archs), "-o", str(folder / f"{source.name}.o")]
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {source.name: pool.submit(run, source) for source in sorted(SOURCES, key=lambda path: -path.stat().st_size)}


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
def test_source_compiles_for_every_card(name: str, compiled: dict[str, Future[Compiled]], report: list[str]) -> None:
    done = compiled[name].result()
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    assert [line for line in output.splitlines() if "warning" in line.lower() and HARMLESS not in line] == []
    if name.endswith(".cu"):
        found = usages(output)
        assert {f"sm{usage.arch[3:]}" for usage in found} >= set(CARDS)
        report += table(name, found)
