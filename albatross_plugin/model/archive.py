"""The zip archive that a checkpoint is: whether its directory can be trusted, and whether its records are what was written."""

from __future__ import annotations

import os
import threading
import zipfile
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from albatross_plugin.errors import DAMAGED, CheckpointError

_PIECE = 1 << 20
_ENCRYPTED = 1
_POLL_SECONDS = 0.1
# One thread sums about 2 GB a second, and a disk or a card takes more.
_THREADS = 4


def check_directory(path: Path) -> Counter[int]:
    """Look at the table of records alone; how many there are of each size.

    Raises CheckpointError for one that PyTorch would read wrongly, zipfile's errors for damage: a mapped record is taken from the
    file as it lies there, so packed bytes would become weights.
    """
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    names: set[str] = set()
    for record in records:
        if record.filename in names:
            raise CheckpointError(f"{path.name} holds two records of one name, {record.filename[:100]!r}; nobody can tell which counts")
        names.add(record.filename)
        if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & _ENCRYPTED:
            raise CheckpointError(f"{path.name} was packed or encrypted by an archiver; unpack it, or save it again with torch.save")
    declared, there = sum(record.file_size for record in records), path.stat().st_size
    if declared > there:
        raise CheckpointError(f"{path.name} declares records of {declared} bytes, but has {there} bytes ({DAMAGED})")
    return Counter(record.file_size for record in records)


class Checksums:
    """``with Checksums(path, wanted): load`` compares every record with its checksum, in threads beside the load.

    Leaving the block without an error waits for the rest and raises CheckpointError for the first record that differs. Meanwhile
    ``wanted`` is called again and again; what it raises ends the wait. The bytes are those that the load reads too, so they come from
    the disk once. A file in PyTorch's older form, or one that was saved without checksums, has nothing to compare.
    """

    def __init__(self, path: str | Path, wanted: Callable[[], None]) -> None:
        self._path = Path(path)
        self._wanted = wanted
        self._stop = threading.Event()
        self._damaged: str | None = None
        self._left: deque[str] = deque()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Checksums:
        if zipfile.is_zipfile(self._path):
            self._left = deque(self._records())
            count = min(_THREADS, (os.cpu_count() or 1) // 2 or 1, len(self._left))
            self._threads = [threading.Thread(target=self._compare, name="albatross-checksums", daemon=True) for _ in range(count)]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            while kind is None:
                self._wanted()
                running = [thread for thread in self._threads if thread.is_alive()]
                if not running or self._damaged is not None:
                    break
                running[0].join(_POLL_SECONDS)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        if kind is None and self._damaged is not None:
            raise CheckpointError(f"{self._path.name} is damaged ({DAMAGED}): {self._damaged}; copy or download it again")

    def _records(self) -> list[str]:
        """The largest first, so that no thread is left with one of them at the end; none when the file was saved without checksums."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                records = archive.infolist()
        except Exception as error:
            self._damaged = f"its table of records cannot be read ({error})"
            return []
        if not any(record.CRC for record in records):
            return []
        return [record.filename for record in sorted(records, key=lambda record: record.file_size, reverse=True)]

    def _compare(self) -> None:
        name = ""
        try:
            with zipfile.ZipFile(self._path) as archive:
                while not self._stop.is_set():
                    try:
                        name = self._left.popleft()
                    except IndexError:
                        return
                    with archive.open(name) as content:
                        while not self._stop.is_set() and content.read(_PIECE):
                            pass
        except OSError as error:
            self._damaged = f"record {name[:100]!r} cannot be read ({error})"
        except Exception:
            # What zipfile raises for damage goes from BadZipFile to struct.error and NotImplementedError.
            self._damaged = f"record {name[:100]!r} does not have the checksum that was saved with it"
