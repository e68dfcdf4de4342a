"""Logs of measurements: what was run, where, with which versions, and the lines it gave."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TextIO

SUMMARY = "summary:"
PACKAGES = ("albatross-plugin", "torch", "rwkv", "fastapi", "uvicorn", "numpy")


def percentile(values: Iterable[float], part: float) -> float:
    """The value below which ``part`` (0 to 1) of the values lie, between neighbours in proportion. Raises ValueError if empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    return percentile(values, 0.5)


def machine() -> str:
    """The machine in words that say what a figure depends on, and nothing that names it."""
    bits = [f"{os.cpu_count()} cores", platform.machine(), platform.system()]
    vectors = _vector_extensions()
    return ", ".join([*bits, vectors] if vectors else bits)


def _vector_extensions() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return ""
    known = {"avx512f": "AVX-512", "avx2": "AVX2"}
    found = next((name for flag, name in known.items() if flag in flags), "")
    return found + (" (virtual machine)" if "hypervisor" in flags else "")


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


class Log:
    """Writes lines to standard output and, when a path is given, to a file. A context manager."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def line(self, text: str = "") -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if self._file is not None:
            self._file.write(text + "\n")
            self._file.flush()

    def head(self, module: str, command: Sequence[str]) -> None:
        """What a reader needs to repeat the run. ``command``: the words after ``python -m MODULE``; files by their names alone."""
        words = (Path(word).name if Path(word).is_absolute() else word for word in command)
        self.line(f"command: python -m {module} {' '.join(words)}".rstrip())
        self.line(f"date: {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC")
        self.line(f"machine: {machine()}")
        self.line(f"versions: {versions()}")
        if hasattr(os, "getloadavg"):
            self.line(f"load average before: {os.getloadavg()[0]:.2f}")

    def summary(self, text: str) -> None:
        """The end of a log: the Markdown that a page quotes."""
        self.line()
        self.line(SUMMARY)
        self.line(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
