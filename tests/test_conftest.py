"""A skip is a failure in CI, unless it waits for a card."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_peer():
    pytest.importorskip("no_such_package_anywhere")

@pytest.mark.gpu
def test_card():
    pytest.skip("no card")

@pytest.mark.xfail
def test_known():
    assert False
"""
MODULE = 'import pytest\npytest.importorskip("no_such_package_anywhere")\n'


@pytest.mark.parametrize(("ci", "outcome"), [("", "3 skipped, 1 xfailed"), ("true", "1 failed, 1 skipped, 1 xfailed, 1 error")])
def test_a_skip_is_a_failure_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n", encoding="utf-8")
    (tmp_path / "test_them.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_module.py").write_text(MODULE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True, timeout=60, check=False)
    assert outcome in done.stdout.splitlines()[-1]
    assert done.returncode == (1 if ci else 0)
