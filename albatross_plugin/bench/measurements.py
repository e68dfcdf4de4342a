"""Rates of this engine and of others as JSON lines: written by one program, read by another.

A line has ``peer``, ``model``, ``batch``, ``kind`` (or ``what``), ``state`` and ``tokens_per_second`` (or ``tok_s``). A card's ceilings are
lines too: of kind ``ceilings`` with ``copy_gb_s`` and ``product_tflop_s``, or ``copy`` with ``GBs`` and ``fp16_8192`` with ``TFLOPs``.
Lines without a rate, such as failures, are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from albatross_plugin.bench.roofline import Ceilings

OURS = "albatross-plugin"
CEILINGS = "ceilings"
FORWARD, WITH_SAMPLER, PREFILL = "forward", "forward+sampler", "prefill"


@dataclass(frozen=True)
class Measurement:
    """One rate. ``batch``: sequences at a time; ``kind``: what was run; ``state``: fp16, fp32, or empty where nobody said."""

    peer: str
    model: str
    batch: int
    kind: str
    state: str
    tokens_per_second: float


def parse(line: Mapping[str, Any]) -> Measurement | None:
    """A line's rate, or None when it holds none."""
    rate = line.get("tokens_per_second", line.get("tok_s"))
    if rate is None or "error" in line:
        return None
    kind = str(line.get("kind", line.get("what", "")))
    return Measurement(str(line["peer"]), str(line["model"]), int(line["batch"]), kind, str(line.get("state", "")), float(rate))


def find_ceilings(lines: Iterable[Mapping[str, Any]]) -> Ceilings | None:
    """The last ceilings among the lines, or None when they are not complete."""
    copy = product = None
    for line in lines:
        kind = line.get("kind", line.get("what"))
        if kind == CEILINGS:
            copy, product = line["copy_gb_s"], line["product_tflop_s"]
        elif kind == "copy" and "GBs" in line:
            copy = line["GBs"]
        elif kind == "fp16_8192" and "TFLOPs" in line:
            product = line["TFLOPs"]
    return Ceilings(copy * 1e9, product * 1e12) if copy and product else None


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All lines of the files, in order. Raises ValueError that names file and line where one is not a JSON object."""
    found = []
    for path in paths:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if not isinstance(line, dict):
                raise ValueError(f"{path}, line {number}: not an object")
            found.append(line)
    return found


class Lines:
    """Writes JSON lines to a file as they come, so that a run that is cut short leaves what it had; to nowhere without a path."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8", newline="\n")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"peer": OURS, **line}) + "\n")
            self._file.flush()

    def add_ceilings(self, card: str, ceilings: Ceilings) -> None:
        self.add(kind=CEILINGS, card=card, copy_gb_s=round(ceilings.copy / 1e9, 1), product_tflop_s=round(ceilings.product / 1e12, 1))
