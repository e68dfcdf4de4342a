"""The garbage collector's view of the process while an engine runs."""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_settled = 0


def settle() -> None:
    """Collect once, then leave everything that lives now out of later collections, until the last ``unsettle``.

    A full collection walks over all containers of the process, some 70 ms with torch imported, and no thread runs meanwhile:
    every stream would stand still. What is made from now on is collected as usual, and so is what reference counts free.
    """
    global _settled
    with _lock:
        gc.collect()
        gc.freeze()
        _settled += 1


def unsettle() -> None:
    """One engine has ended; after the last one the collector sees everything again."""
    global _settled
    with _lock:
        _settled -= 1
        if not _settled:
            gc.unfreeze()
