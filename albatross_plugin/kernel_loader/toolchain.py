"""The tools of a build: nvcc, a C++ compiler and ninja. Each that is missing or does not fit is one sentence with its remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from albatross_plugin.errors import NO_NINJA, DeviceError
from albatross_plugin.kernel_loader.context import TorchFacts, number_of

WINDOWS = sys.platform == "win32"


class Missing(Exception):
    """What is missing and what to do, as one sentence."""


@dataclass(frozen=True)
class Toolchain:
    """Everything that the build file names. ``cudart`` is the runtime library to link with."""

    nvcc: str
    nvcc_version: str
    cuda_include: Path
    cudart: Path
    cxx: str
    ninja: str


def _run(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Both outputs of a short command; empty when it cannot be run."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def _executable(folder: Path, name: str) -> str | None:
    return shutil.which(name, path=str(folder))


def _find_nvcc(facts: TorchFacts, environ: Mapping[str, str]) -> str:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = environ.get(variable)
        if home:
            found = _executable(Path(home) / "bin", "nvcc")
            if found is None:
                raise Missing(f"{variable}={home} holds no bin/nvcc: correct the variable or unset it")
            return found
    major = (facts.cuda or "").partition(".")[0]
    homes = [
        # Where the toolkit's packages from PyPI lie, beside torch.
        facts.folder.parent / "nvidia" / f"cu{major}",
        Path("/usr/local/cuda"),
        *sorted(Path(environ.get("ProgramFiles", "C:/Program Files")).glob(f"NVIDIA GPU Computing Toolkit/CUDA/v{major}.*"), reverse=True),
    ]
    found = shutil.which("nvcc", path=environ.get("PATH", ""))
    found = found or next((nvcc for home in homes if (nvcc := _executable(home / "bin", "nvcc"))), None)
    if found is None:
        raise Missing(f"nvcc is missing: install the CUDA {facts.cuda} toolkit, and set CUDA_HOME to its folder if nvcc is not on PATH")
    return found


def _cuda_home(nvcc: str, environ: Mapping[str, str], scratch: Path) -> Path:
    """nvcc says itself where its toolkit is; the command on PATH may be a script or a link elsewhere."""
    empty = scratch / "empty.cu"
    empty.write_text("", encoding="utf-8")
    said = re.search(r"^#\$ TOP=(.+)$", _run([nvcc, "--dryrun", "-c", str(empty)], environ), flags=re.MULTILINE)
    return Path(said[1].strip()) if said else Path(nvcc).resolve().parent.parent


def _first(candidates: Sequence[Path]) -> Path | None:
    return next((path for path in candidates if path.exists()), None)


def _runtime(home: Path, major: str) -> tuple[Path, Path]:
    """Folder of the headers, and the library to link."""
    targets = sorted((home / "targets").glob("*")) if (home / "targets").is_dir() else []
    header = _first([folder / "include" / "cuda_runtime_api.h" for folder in (home, *targets)])
    if header is None:
        raise Missing(f"the headers of CUDA are missing under {home}: install the toolkit's development files")
    if WINDOWS:
        library = _first([home / "lib" / "x64" / "cudart.lib"])
    else:
        folders = [home / "lib64", home / "lib", *(folder / "lib" for folder in targets), Path("/usr/lib/x86_64-linux-gnu")]
        library = _first([folder / name for folder in folders for name in ("libcudart.so", f"libcudart.so.{major}")])
    if library is None:
        raise Missing(f"the CUDA runtime library is missing under {home}: install the toolkit's development files")
    return header.parent, library


def _find_cxx(environ: Mapping[str, str]) -> str:
    path = environ.get("PATH", "")
    if WINDOWS:
        found = shutil.which("cl", path=path)
        if found is None:
            raise Missing("cl.exe is missing: install the Visual Studio Build Tools (C++) and start from their x64 Native Tools prompt")
        return found
    named = environ.get("CXX")
    if named:
        found = shutil.which(named, path=path)
        if found is None:
            raise Missing(f"CXX={named} is no program: correct the variable or unset it")
        return found
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    raise Missing("a C++ compiler is missing: install g++ (on Debian: apt install g++)")


def _ninja_of_python() -> str | None:
    """The one that pip installed; its folder need not be on PATH when the environment was not activated."""
    try:
        import ninja
    except ImportError:
        return None
    return _executable(Path(ninja.BIN_DIR), "ninja")


def _find_ninja(environ: Mapping[str, str], packaged: Callable[[], str | None]) -> str:
    found = shutil.which("ninja", path=environ.get("PATH", "")) or packaged()
    if found is None:
        raise Missing(f"ninja is missing: pip install ninja ({NO_NINJA})")
    return found


def _check_version(nvcc: str, facts: TorchFacts, environ: Mapping[str, str]) -> str:
    said = re.search(r"release (\d+\.\d+)", _run([nvcc, "--version"], environ))
    if said is None:
        raise Missing(f"{nvcc} does not run: reinstall the CUDA {facts.cuda} toolkit")
    if facts.cuda is not None and said[1].partition(".")[0] != facts.cuda.partition(".")[0]:
        raise Missing(
            f"{nvcc} is of CUDA {said[1]}, but torch {facts.version} was built with CUDA {facts.cuda}: "
            f"install a CUDA {facts.cuda} toolkit and set CUDA_HOME to its folder"
        )
    return said[1]


def _check_archs(nvcc: str, version: str, archs: Sequence[str], environ: Mapping[str, str]) -> None:
    known = sorted({int(number) for number in re.findall(r"^compute_(\d+)$", _run([nvcc, "--list-gpu-arch"], environ), flags=re.MULTILINE)})
    for arch in archs:
        number = number_of(arch)
        if known and number not in known:
            older = [each for each in known if each < number]
            way_out = f", or set ALBATROSS_KERNEL_ARCH=compute{older[-1]}" if older else ""
            change = "a newer CUDA toolkit" if number > known[-1] else "an older CUDA toolkit"
            raise Missing(f"{nvcc} (CUDA {version}) cannot compile for {arch}: install {change}{way_out}")


def find_toolchain(
    facts: TorchFacts,
    archs: Sequence[str],
    scratch: Path,
    environ: Mapping[str, str] | None = None,
    packaged_ninja: Callable[[], str | None] = _ninja_of_python,
) -> Toolchain:
    """The tools to build for ``archs`` with this torch. ``scratch`` is a folder for a file that nvcc is asked with.

    Raises DeviceError with a sentence for each tool that is missing or does not fit.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    nvcc, version, runtime, cxx, ninja = "", "", (Path(), Path()), "", ""
    try:
        nvcc = _find_nvcc(facts, environ)
        version = _check_version(nvcc, facts, environ)
        _check_archs(nvcc, version, archs, environ)
        runtime = _runtime(_cuda_home(nvcc, environ, scratch), version.partition(".")[0])
    except Missing as problem:
        problems.append(str(problem))
    try:
        cxx = _find_cxx(environ)
    except Missing as problem:
        problems.append(str(problem))
    try:
        ninja = _find_ninja(environ, packaged_ninja)
    except Missing as problem:
        problems.append(str(problem))
    if problems:
        raise DeviceError("; ".join(problems) + ".")
    return Toolchain(nvcc, version, *runtime, cxx, ninja)
