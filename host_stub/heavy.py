"""Work that would hold up the event loop, in a few threads that nothing else waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

T = TypeVar("T")

# A longer body, prompt or text is read elsewhere than on the event loop, where every other request would feel it.
LARGE = 65536
# More threads would not be faster, as they share the interpreter's lock, and the loop would get its turn later.
THREADS = 2
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("host_stub.heavy")


async def in_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; calls beyond ``THREADS`` wait."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)
