"""One build at a time: a lock on an open file, which the system takes back when its holder ends, however it ends."""

from __future__ import annotations

import errno
import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from albatross_plugin.errors import DeviceError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
# Network file systems may offer no locks at all; builds then only cost their time twice, since results are moved into place whole.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def _try_lock(stream: IO[bytes]) -> bool:
    """True when the lock is now ours, or when there are no locks here."""
    try:
        if sys.platform == "win32":
            import msvcrt

            stream.seek(0)
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            logger.debug("no locks here: %s", error)
            return True
        # EDEADLK is what Windows answers.
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


class BuildLock:
    """Held inside ``with``. The file stays behind, empty or not: what counts is who holds it open.

    Raises DeviceError, naming the file, when another process has it for longer than ``timeout`` seconds.
    """

    def __init__(self, file: Path, timeout: float) -> None:
        self._file = file
        self._timeout = timeout
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> BuildLock:
        stream = self._file.open("ab")
        began = time.monotonic()
        told = False
        try:
            while not _try_lock(stream):
                if time.monotonic() - began > self._timeout:
                    raise DeviceError(
                        f"another process has been building the kernels for {self._timeout:g} s and holds {self._file}. "
                        "End it, or set ALBATROSS_BUILD_TIMEOUT to more seconds."
                    )
                if not told:
                    logger.info("another process builds the kernels; waiting for %s, at most %g s", self._file, self._timeout)
                    told = True
                time.sleep(POLL_SECONDS)
        except BaseException:
            stream.close()
            raise
        self._stream = stream
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._stream is not None:
            self._stream.close()  # which gives the lock back
            self._stream = None
