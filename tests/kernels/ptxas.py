"""What ptxas says of each kernel: registers, and bytes that did not fit into them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """One kernel on one architecture; ``spilled`` in bytes of stores and loads together."""

    kernel: str
    arch: str
    registers: int
    spilled: int


def usages(output: str) -> list[Usage]:
    """From the output of ``nvcc -Xptxas -v``."""
    found = []
    kernel, arch, spilled = "", "", 0
    for line in output.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            kernel, arch, spilled = match[1], match[2], 0
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif kernel and (match := re.search(r"Used (\d+) registers", line)):
            found.append(Usage(kernel, arch, int(match[1]), spilled))
            kernel = ""
    return found


def readable(names: Sequence[str]) -> dict[str, str]:
    """Mangled names as a reader would write them, without their arguments; as they are where no demangler is."""
    tool = shutil.which("c++filt")
    if tool is None:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True)
    short = (
        re.sub(r"^void ", "", line.replace("(anonymous namespace)::", "").replace("albatross::", "")) for line in done.stdout.splitlines()
    )
    return {name: re.sub(r"\((?![^<]*>).*", "", line) or name for name, line in zip(names, short, strict=True)}


def table(file: str, found: Sequence[Usage]) -> list[str]:
    """Lines for people: a row for each kernel, a column for each architecture; ``59+8`` are 59 registers and 8 bytes spilled."""
    archs = list(dict.fromkeys(usage.arch for usage in found))
    names = readable(list(dict.fromkeys(usage.kernel for usage in found)))
    cells = {(usage.kernel, usage.arch): f"{usage.registers}{f'+{usage.spilled}' if usage.spilled else ''}" for usage in found}
    lines = [f"{file:58.58s}" + "".join(f"{arch.removeprefix('sm_'):>8s}" for arch in archs)]
    lines += [f"  {names[kernel]:56.56s}" + "".join(f"{cells.get((kernel, arch), '-'):>8s}" for arch in archs) for kernel in names]
    return lines
