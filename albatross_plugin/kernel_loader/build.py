"""Building the kernels from source: once for each torch, CUDA and architecture, in a folder of the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.context import KERNEL_NAME, TorchFacts, platform_tag, python_abi
from albatross_plugin.kernel_loader.lock import BuildLock
from albatross_plugin.kernel_loader.ninja_file import ninja_text
from albatross_plugin.kernel_loader.toolchain import find_toolchain

logger = logging.getLogger(__name__)

LIBRARY = KERNEL_NAME + (".pyd" if sys.platform == "win32" else ".so")
# A change of the commands or of what is compiled makes other libraries from the same sources.
RECIPE = 1


@dataclass(frozen=True)
class Job:
    """What to build: ``sources`` is the folder with the kernels' code, ``archs`` as in ``context.arch_of``, ``timeout`` in seconds."""

    sources: Path
    facts: TorchFacts
    archs: tuple[str, ...]
    timeout: float
    jobs: int = 0

    @property
    def what(self) -> str:
        return ", ".join(self.archs)


def cache_root(chosen: str = "", environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """``chosen``, or this user's folder for files that can be made again, by the customs of the platform."""
    environ = os.environ if environ is None else environ
    if chosen:
        return Path(chosen).expanduser().absolute()
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "albatross-plugin" / "Cache" / "kernels"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "albatross-plugin" / "kernels"
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "albatross-plugin" / "kernels"


def source_files(folder: Path) -> list[Path]:
    """What is compiled. Raises DeviceError when the folder holds no kernels."""
    # Absolute: ninja runs in another folder.
    found = sorted([*folder.absolute().glob("*.cpp"), *folder.absolute().glob("*.cu")])
    if not found:
        raise DeviceError(f"the kernels' sources are missing: {folder} holds none; reinstall albatross-plugin.")
    return found


def build_key(job: Job) -> str:
    """A folder's name that changes with everything that a library depends on."""
    digest = hashlib.sha256()
    parts = [RECIPE, job.facts.version, job.facts.cuda, job.facts.cxx11_abi, python_abi(), platform_tag(), *job.archs]
    digest.update(repr(parts).encode())
    for file in sorted(path for path in job.sources.iterdir() if path.suffix in (".cpp", ".cu", ".h", ".cuh")):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    torch = re.sub(r"[^\w.+-]", "_", job.facts.version)
    return f"torch-{torch}-{python_abi()}-{'-'.join(job.archs)}-{digest.hexdigest()[:16]}"


def build(job: Job, root: Path, environ: Mapping[str, str] | None = None, fresh: bool = False) -> tuple[Path, bool]:
    """The library for ``job`` under ``root``, and whether it had to be made; ``fresh`` makes it in any case.

    Raises DeviceError: a missing tool, a failed build, a folder that cannot be written, a lock held for too long.
    """
    source_files(job.sources)
    key = build_key(job)
    library = root / key / LIBRARY
    if library.is_file() and not fresh:
        return library, False
    try:
        root.mkdir(parents=True, exist_ok=True)
        with BuildLock(root / f"{key}.lock", job.timeout):
            if library.is_file() and not fresh:
                return library, False
            _clear(root, key)
            _make(job, root, key, library, os.environ if environ is None else environ)
    except OSError as error:
        raise DeviceError(f"the kernels cannot be built in {root}: {error}. Set ALBATROSS_CACHE_DIR to another folder.") from error
    return library, True


def _clear(root: Path, key: str) -> None:
    """Whoever left these folders is gone: their makers held the lock that is ours now."""
    for folder in root.glob(f"{key}.build-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _make(job: Job, root: Path, key: str, library: Path, environ: Mapping[str, str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix=f"{key}.build-", dir=root))
    try:
        tools = find_toolchain(job.facts, job.archs, folder, environ)
        logger.info("building kernels for %s, once for this torch (%s), in %s", job.what, job.facts.version, root)
        began = time.monotonic()
        (folder / "build.ninja").write_text(ninja_text(source_files(job.sources), LIBRARY, tools, job.facts, job.archs), encoding="utf-8")
        limit = ["-j", str(count)] if (count := job.jobs or _max_jobs(environ)) else []
        problem = _run_ninja([tools.ninja, *limit], folder, environ, job.timeout)
        if problem is not None:
            log = root / f"{key}.log"
            shutil.copyfile(folder / "ninja.log", log)
            raise DeviceError(f"building the kernels for {job.what} with nvcc {tools.nvcc_version} failed: {problem} (all of it: {log})")
        library.parent.mkdir(exist_ok=True)
        # Whole or not at all, also for a process that looks without the lock.
        (folder / LIBRARY).replace(library)
        logger.info("kernels for %s built in %.0f s: %s", job.what, time.monotonic() - began, library)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _max_jobs(environ: Mapping[str, str]) -> int:
    text = environ.get("MAX_JOBS", "").strip()
    return int(text) if text.isdecimal() else 0


def _run_ninja(command: Sequence[str], folder: Path, environ: Mapping[str, str], timeout: float) -> str | None:
    """None, or why it failed. All output goes to ``folder``/ninja.log."""
    log = folder / "ninja.log"
    with log.open("wb") as out:
        # English messages, which `telling_lines` knows.
        process = subprocess.Popen(
            command, cwd=folder, env={**environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f"it took more than {timeout:g} s; set ALBATROSS_BUILD_TIMEOUT to more"
        finally:
            if process.poll() is None:
                # ninja ends its compilers when it is asked to end.
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()
    return None if code == 0 else telling_lines(log.read_text(encoding="utf-8", errors="replace"))


_REMEDIES = (
    (r"unsupported (GNU|clang|Microsoft Visual Studio) version", "the C++ compiler is newer than nvcc supports; set CXX to an older one"),
    (r"Killed|signal 9|[Cc]annot allocate memory|out of memory", "memory ran out; set MAX_JOBS=1"),
    (r"No space left on device", "the disk is full; set ALBATROSS_CACHE_DIR to a folder with more space"),
    (r"Python\.h", "the headers of Python are missing; install python3-dev"),
)
_TELLING = re.compile(
    r"\berror\b|fatal|undefined reference|unsupported|cannot find|not found|No such file|Killed|No space left", re.IGNORECASE
)


def telling_lines(output: str, most: int = 3) -> str:
    """The few lines of a failed build's output that say why, and the remedy where it is known."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Command lines are long and hold words like those of errors; ninja prints them after FAILED.
    said = [line for line in lines if not line.startswith(("FAILED", "ninja:", "[")) and " -c " not in line and " -shared " not in line]
    telling = list(dict.fromkeys(line for line in said if _TELLING.search(line)))[:most] or (said or lines)[-most:]
    text = " | ".join(line if len(line) <= 300 else line[:297] + "..." for line in telling) or "ninja said nothing"
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, output)), None)
    return f"{remedy}: {text}" if remedy else text
