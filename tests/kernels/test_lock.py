"""One build at a time, and no lock outlives its holder (KRN-1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.lock import BuildLock

HOLD = """
import sys, time
from pathlib import Path
from albatross_plugin.kernel_loader.lock import BuildLock
with BuildLock(Path(sys.argv[1]), 10):
    print("held", flush=True)
    time.sleep(100)
"""


def hold(file: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_krn_1_a_file_that_was_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.touch()
    began = time.monotonic()
    for _ in range(2):
        with BuildLock(file, 5):
            pass
    assert time.monotonic() - began < 2
    assert file.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal 9")
def test_krn_1_a_killed_holder_gives_the_lock_back(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    holder = hold(file)
    os.kill(holder.pid, signal.SIGKILL)
    end(holder)
    with BuildLock(file, 5):
        pass


def test_krn_1_waiting_is_bounded_and_names_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "lock"
    holder = hold(file)
    try:
        with caplog.at_level("INFO"), pytest.raises(DeviceError) as caught, BuildLock(file, 0.5):
            pass
    finally:
        end(holder)
    assert str(file) in str(caught.value) and "ALBATROSS_BUILD_TIMEOUT" in str(caught.value)
    assert len([record for record in caplog.records if str(file) in record.getMessage()]) == 1


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    inside = []
    most = []

    def work() -> None:
        with BuildLock(tmp_path / "lock", 30):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_an_error_inside_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), BuildLock(tmp_path / "lock", 1):
        raise ZeroDivisionError
    with BuildLock(tmp_path / "lock", 1):
        pass
