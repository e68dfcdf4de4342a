"""A CUDA toolkit and a torch folder that are not there: scripts and empty libraries in their places, fast enough for every test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from albatross_plugin.kernel_loader.build import Job
from albatross_plugin.kernel_loader.context import KERNEL_NAME, KernelContext, TorchFacts

HERE = KernelContext(KERNEL_NAME, "2.11.0+cu130", "13.0", "cp312", "linux_x86_64", "sm90")

# Compiles device code as the C++ that the tests' kernels are, and leaves a line for every call in the file that CALLS names.
NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.88"; exit 0;;
  --list-gpu-arch) for number in {archs}; do echo "compute_$number"; done; exit 0;;
  --dryrun) echo "#$ TOP={home}" >&2; exit 0;;
esac
[ -z "$CALLS" ] || echo "$$" >> "$CALLS"
[ -z "$SLOW" ] || sleep "$SLOW"
for word in "$@"; do
  case "$word" in *.cu) source="$word";; *.o) object="$word";; esac
done
exec c++ -x c++ -fPIC -c "$source" -o "$object"
"""


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file


def empty_library(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", str(file)], check=True)


def make_toolkit(home: Path, version: str = "13.0", archs: str = "75 80 86 89 90 100 120") -> Path:
    script(home / "bin" / "nvcc", NVCC.format(version=version, archs=archs, home=home))
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime_api.h").touch()
    empty_library(home / "lib64" / "libcudart.so")
    return home


def make_torch(folder: Path, version: str = HERE.torch, cuda: str = HERE.cuda) -> TorchFacts:
    for name in ("c10", "c10_cuda", "torch_cpu"):
        empty_library(folder / "lib" / f"lib{name}.so")
    return TorchFacts(version, cuda, folder)


def make_sources(folder: Path, broken: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "answer.h").write_text("int half_of_it();\n", encoding="utf-8")
    (folder / "device.cu").write_text('#include "answer.h"\nint half_of_it() { return 21; }\n', encoding="utf-8")
    code = "this is no C++;" if broken else "return 2 * half_of_it();"
    (folder / "host.cpp").write_text(f'#include "answer.h"\nextern "C" int answer() {{ {code} }}\n', encoding="utf-8")
    return folder


def make_job(folder: Path, timeout: float = 60, broken: bool = False) -> Job:
    return Job(make_sources(folder / "csrc", broken), make_torch(folder / "torch"), ("sm90",), timeout)


def path_with(folder: Path, *names: str, home: Path | None = None) -> str:
    """A PATH of one folder that holds links to these programs and no others; and the toolkit's programs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return os.pathsep.join([str(folder), *([str(home / "bin")] if home else [])])
