"""What the demo shows while streams run: a redrawn line for each in a terminal, plain lines of news elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TextIO

from host_stub.demo_streams import Stream, aggregate_rate

REDRAW_SECONDS = 0.15
BAR = 16


def is_terminal(out: TextIO) -> bool:
    """Whether lines can be redrawn on ``out``; on Windows this also asks the console to understand how."""
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return sys.platform != "win32" or _windows_console()


def _windows_console() -> bool:
    if sys.platform != "win32":
        return False
    import ctypes

    kernel, mode = ctypes.windll.kernel32, ctypes.c_ulong()
    handle = kernel.GetStdHandle(-11)
    if not kernel.GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    processed_output, escape_sequences = 1, 4
    return bool(kernel.SetConsoleMode(handle, mode.value | processed_output | escape_sequences))


def printable(text: str, columns: int) -> str:
    """The end of ``text`` in at most ``columns`` terminal columns; what has no width or would move the cursor becomes a space."""
    shown: list[str] = []
    for char in reversed(text[-4 * columns :] if columns > 0 else ""):
        kind = unicodedata.category(char)
        if kind[0] in "CMZ":
            char = " "
        columns -= 2 if unicodedata.east_asian_width(char) in "WFA" else 1
        if columns < 0:
            break
        shown.append(char)
    return "".join(reversed(shown))


def row(stream: Stream, columns: int) -> str:
    """One stream as a line: number, progress, tokens, rate, the latest text."""
    done = BAR * stream.tokens // stream.limit if stream.limit else 0
    bar = "#" * min(done, BAR) + "." * max(BAR - done, 0)
    head = f" {stream.number:2} [{bar}] {stream.tokens:3}/{stream.limit} {stream.rate:6.1f} tok/s  "
    if stream.error:
        return head + printable(stream.error, max(columns - len(head) - 1, 0))
    if stream.first is None:
        return head + ("waiting" if stream.ended is None else "no text")
    return head + printable(stream.text, max(columns - len(head) - 1, 0))


class LiveView:
    """Redraws all lines in place, a few times a second."""

    def __init__(self, streams: Sequence[Stream], out: TextIO) -> None:
        self.streams = streams
        self.out = out
        self._drawn = 0

    async def run(self) -> None:
        """Redraw until cancelled."""
        while True:
            self.draw()
            await asyncio.sleep(REDRAW_SECONDS)

    def draw(self) -> None:
        columns, height = shutil.get_terminal_size()
        # A block taller than the window cannot be redrawn: show its top.
        shown = self.streams[: max(height - 2, 1)]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        lines = [f"\x1b[2K{row(stream, columns)}\n" for stream in shown]
        self.out.write(up + "".join(lines))
        self.out.flush()
        self._drawn = len(shown)

    def finish(self) -> None:
        self.draw()


class PlainView:
    """A line when a stream's first text comes and one when it ends."""

    def __init__(self, streams: Sequence[Stream], out: TextIO) -> None:
        self.streams = streams
        self.out = out
        self._told: set[tuple[int, str]] = set()
        self._began = time.perf_counter()

    async def run(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(REDRAW_SECONDS)

    def finish(self) -> None:
        self._tell()

    def _tell(self) -> None:
        for when, number, text in sorted(self._news()):
            self.out.write(f"  {when - self._began:6.2f} s  request {number:2}  {text}\n")
        self.out.flush()

    def _news(self) -> Iterator[tuple[float, int, str]]:
        """What happened since the last call: moment, request, words."""
        for stream in self.streams:
            if stream.first is not None and self._is_new(stream, "first"):
                yield stream.first, stream.number, "first text"
            if stream.ended is not None and self._is_new(stream, "ended"):
                result = stream.error or f"{stream.tokens} tokens, {stream.rate:.1f} tok/s: {printable(stream.text, 40)}"
                yield stream.ended, stream.number, result

    def _is_new(self, stream: Stream, what: str) -> bool:
        known = (stream.number, what) in self._told
        self._told.add((stream.number, what))
        return not known


def timetable(streams: Sequence[Stream]) -> list[str]:
    """Start, first text and end of each stream, in seconds since the first start."""
    zero = min((stream.started for stream in streams if stream.started is not None), default=0.0)

    def at(moment: float | None) -> str:
        return "      -" if moment is None else f"{moment - zero:7.2f}"

    lines = ["  request    start  first text      end   tokens"]
    lines += [f"  {s.number:7}  {at(s.started)}     {at(s.first)}  {at(s.ended)}   {s.tokens:6}" for s in streams]
    return [*lines, f"  all together: {aggregate_rate(streams):.1f} tokens/s"]
