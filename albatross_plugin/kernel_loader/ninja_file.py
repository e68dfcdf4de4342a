"""The text of build.ninja: which commands make the library of the kernels. Pure."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from albatross_plugin.kernel_loader.context import TorchFacts, number_of
from albatross_plugin.kernel_loader.toolchain import Toolchain

# Untested: no Windows machine was at hand. The flags are those that torch's own extensions use there.
_MSVC = ["/nologo", "/std:c++17", "/O2", "/EHsc", "/MD", "/Zc:__cplusplus", "/Zc:preprocessor", "/bigobj", "/wd4819", "/wd4251", "/wd4275"]


def gencode(archs: Sequence[str]) -> list[str]:
    """Flags for machine code and PTX of every ``smNN``, and PTX alone of every ``computeNN``."""
    flags = []
    for arch in archs:
        number = number_of(arch)
        kinds = ("sm", "compute") if arch.startswith("sm") else ("compute",)
        flags += [f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in kinds]
    return flags


def _line(words: Sequence[str], windows: bool) -> str:
    """One command for the shell that ninja starts. ``$in`` and ``$out`` are ninja's own and quoted by it."""
    quoted = (word if word in ("$in", "$out", "/Fo$out", "/OUT:$out") else _quote(word, windows).replace("$", "$$") for word in words)
    return " ".join(quoted)


def _quote(word: str, windows: bool) -> str:
    return subprocess.list2cmdline([word]) if windows else shlex.quote(word)


def _escape(path: Path | str) -> str:
    """A path in a build statement."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def cxx_command(tools: Toolchain, facts: TorchFacts, windows: bool, defines: Sequence[str] = ()) -> list[str]:
    """Words that compile one .cpp file, without its name and its output's."""
    torch_include = facts.folder / "include"
    folders = [torch_include, torch_include / "torch" / "csrc" / "api" / "include", tools.cuda_include]
    if windows:
        return [tools.cxx, *_MSVC, *(f"/D{each}" for each in defines), *(f"/I{folder}" for folder in folders), "/c"]
    # As system headers, so that torch's own do not fill the output with warnings.
    system = [word for folder in folders if str(folder) != "/usr/include" for word in ("-isystem", str(folder))]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(facts.cxx11_abi)}"
    return [tools.cxx, "-std=c++17", "-O2", "-fPIC", abi, *(f"-D{each}" for each in defines), *system, "-c"]


def nvcc_command(tools: Toolchain, archs: Sequence[str], windows: bool) -> list[str]:
    """Words that compile one .cu file. No --use_fast_math: kernels ask for fast functions where they are exact enough."""
    host = ["-Xcompiler", ",".join(_MSVC[3:])] if windows else ["-Xcompiler", "-fPIC"]
    return [tools.nvcc, "-ccbin", tools.cxx, "-std=c++17", "-O3", *gencode(archs), *host, "-c"]


def link_command(tools: Toolchain, facts: TorchFacts, windows: bool) -> tuple[list[str], list[str]]:
    """Words before and after the objects. The library names no folder of this machine: torch has loaded what it needs by then."""
    folder = facts.folder / "lib"
    if windows:
        libraries = [f"/LIBPATH:{folder}", "c10.lib", "c10_cuda.lib", "torch_cpu.lib", str(tools.cudart)]
        return [str(Path(tools.cxx).with_name("link.exe")), "/nologo", "/DLL", "/OUT:$out"], libraries
    return [tools.cxx, "-shared", "-o", "$out"], [f"-L{folder}", "-lc10_cuda", "-lc10", "-ltorch_cpu", str(tools.cudart), "-ldl"]


def ninja_text(sources: Sequence[Path], library: str, tools: Toolchain, facts: TorchFacts, archs: Sequence[str]) -> str:
    """build.ninja for a folder of its own, in which it makes ``library``."""
    windows = sys.platform == "win32"
    before, after = link_command(tools, facts, windows)
    rules = {
        "cxx": [*cxx_command(tools, facts, windows), "$in", *(["/Fo$out"] if windows else ["-o", "$out"])],
        "nvcc": [*nvcc_command(tools, archs, windows), "$in", "-o", "$out"],
        "link": [*before, "$in", *after],
    }
    lines = ["ninja_required_version = 1.3", ""]
    for name, words in rules.items():
        lines += [f"rule {name}", f"  command = {_line(words, windows)}", f"  description = {name} $out", ""]
    objects = []
    for source in sources:
        target = f"{source.name}.o"
        objects.append(_escape(target))
        lines.append(f"build {_escape(target)}: {'nvcc' if source.suffix == '.cu' else 'cxx'} {_escape(source)}")
    lines += [f"build {_escape(library)}: link {' '.join(objects)}", f"default {_escape(library)}", ""]
    return "\n".join(lines)
