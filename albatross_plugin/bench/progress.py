"""How far a run is: a bar of tqdm on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

LINE_SECONDS = 5.0


class Progress:
    """A context manager that shows ``done`` of ``total`` requests and what else there is to say, on standard error.

    ``show`` may be called as often as one likes; plain lines come every ``LINE_SECONDS``, and one at the end. ``quiet``: nothing at all.
    """

    def __init__(
        self, name: str, total: int, *, quiet: bool = False, target: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self._name, self._total, self._quiet = name, total, quiet
        self._target = sys.stderr if target is None else target
        self._clock = clock
        self._bar: Any = None
        self._last = clock()
        self._said = ""

    def __enter__(self) -> Progress:
        if not self._quiet and self._target.isatty():
            self._bar = _tqdm_bar(self._name, self._total, self._target)
        return self

    def show(self, done: int, more: str) -> None:
        """``more``: what follows the count, such as a rate."""
        if self._bar is not None:
            self._bar.n = done
            self._bar.set_postfix_str(more, refresh=True)
            return
        self._said = f"{self._name}: {done} of {self._total} requests, {more}"
        if not self._quiet and self._clock() - self._last >= LINE_SECONDS:
            self._line()

    def _line(self) -> None:
        self._last = self._clock()
        self._target.write(self._said + "\n")
        self._target.flush()
        self._said = ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._said and not self._quiet:
            self._line()


def _tqdm_bar(name: str, total: int, target: TextIO) -> Any:
    """None where tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(desc=name, total=total, unit="req", file=target, dynamic_ncols=True)
