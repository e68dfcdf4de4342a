"""Python code run in an interpreter of its own, away from the checkout, so that the installed packages are what it sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_python(code: str, folder: Path, *, environ: Mapping[str, str] | None = None, python: str | Path = sys.executable) -> str:
    """What ``code`` printed. Its working directory is ``folder``; warnings are errors; an exception is an AssertionError with its traceback."""
    done = subprocess.run(
        [str(python), "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
