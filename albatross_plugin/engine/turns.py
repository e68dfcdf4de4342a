"""Short turns at the interpreter's lock while an engine runs in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 0.0005

_lock = threading.Lock()
_engines = 0
_usual = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """Let a thread that waits for the lock have it after half a millisecond; the usual value is back when the last one leaves.

    The usual 5 ms are as long as a step of a card: a worker whose step has ended would come back from its wait too late to keep the
    card busy, whenever the host's thread has much to do. A value that the host has set lower stays.
    """
    global _engines, _usual
    with _lock:
        if not _engines:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, SECONDS))
        _engines += 1
    try:
        yield
    finally:
        with _lock:
            _engines -= 1
            if not _engines:
                sys.setswitchinterval(_usual)
