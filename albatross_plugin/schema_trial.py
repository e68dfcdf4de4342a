"""Schemas tried in a small process of its own: what takes too long to compile ends with that process, as no thread could be ended.

llguidance bounds what a text costs, but not the comparison of patterns with each other when a grammar is built. That needs no vocabulary,
so the process holds none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, TextIO

from albatross_plugin.errors import RequestError

logger = logging.getLogger(__name__)

CPU_SECONDS = 1.0
"""Processor time that a schema may take; ordinary ones of 60,000 characters take less than a tenth of it."""
WALL_SECONDS = 4.0
"""The same on a machine that is busy otherwise."""
_READY = "ready"
_TOO_LONG = 3
_LOOK = 0.05
# The module is found where this process finds it, whatever put it there.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from albatross_plugin.schema_trial import main; main()"


class SchemaTrial:
    """The process, started at the first schema and again after one that took too long; it ends with this object.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._finalizer: weakref.finalize[..., SchemaTrial] | None = None
        # A host that was packed into one program has no interpreter to start.
        self._possible = not getattr(sys, "frozen", False)

    def check(self, source: str) -> None:
        """Raises RequestError (400) when llguidance takes too long over this text of a grammar; its other faults are not told here."""
        for _ in range(2):
            if not self._possible:
                return
            process = self._started()
            if process is not None and _answered(process, source):
                return
            if self.close() == _TOO_LONG:
                logger.warning("A schema of %d characters was refused: it takes more than %g s to compile", len(source), CPU_SECONDS)
                raise RequestError(
                    f"this schema takes more than {CPU_SECONDS:g} s to compile; give it fewer patterns, or fewer cases that are alike",
                    param="response_format",
                )
        logger.warning("No process to try schemas in could be started; they are compiled without a limit of time")
        self._possible = False

    def _started(self) -> subprocess.Popen[str] | None:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, json.dumps(sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    encoding="ascii",
                    # An interrupt from the keyboard is for the host; and no window opens.
                    start_new_session=True,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            except OSError as error:
                logger.warning("The process to try schemas in did not start: %s", error)
                return None
            self._finalizer = weakref.finalize(self, _end, self._process)
            assert self._process.stdout is not None
            if self._process.stdout.readline().strip() != _READY:
                return None
        return self._process

    def close(self) -> int | None:
        """End the process; its exit status if it had ended by itself."""
        process, self._process = self._process, None
        if process is None or self._finalizer is None:
            return None
        status: int | None = self._finalizer()
        return status


def _answered(process: subprocess.Popen[str], source: str) -> bool:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(source) + "\n")
        process.stdin.flush()
        return bool(process.stdout.readline())
    except OSError:
        return False


def _end(process: subprocess.Popen[str]) -> int | None:
    assert process.stdin is not None and process.stdout is not None
    # It may have left with something unread.
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()
    try:
        # With its pipes closed, one that is alive waits for nothing; one that gave up is about to be gone.
        return process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def main(requests: TextIO | None = None) -> None:
    """In the process: a line for each text that comes in, until no more do."""
    import llguidance

    limits = trial_limits(llguidance)
    sys.stdout.write(_READY + "\n")
    sys.stdout.flush()
    for line in requests or sys.stdin:
        done = threading.Event()
        watch = threading.Thread(target=_give_up, args=(done,), daemon=True)
        watch.start()
        llguidance.LLMatcher.validate_grammar(json.loads(line), None, limits=limits)
        done.set()
        watch.join()
        sys.stdout.write("done\n")
        sys.stdout.flush()


def trial_limits(library: Any) -> Any:
    """What llguidance itself may spend; the lexer's share lets patterns with some hundred repetitions last for a long text."""
    # What goes wrong at first is told in words, without the state of a parser in them.
    return library.LLParserLimits(verbose_errors=False, max_items_in_row=20_000, step_lexer_fuel=2_000_000)


def _give_up(done: threading.Event) -> None:
    cpu, wall = time.process_time(), time.monotonic()
    while not done.wait(_LOOK):
        if time.process_time() - cpu > CPU_SECONDS or time.monotonic() - wall > WALL_SECONDS:
            os._exit(_TOO_LONG)
