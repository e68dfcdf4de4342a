"""Look-alikes of the Runner's layout, put together in a folder: the same parts in the form of v1.8 and in that of v1.9.11."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent / "lookalike"
FORMS = ("old", "new")


def put_together(form: str, folder: Path) -> Path:
    """main.py of a look-alike in ``folder/backend-python``."""
    backend = folder / "backend-python"
    for part in ("shared", form):
        shutil.copytree(HERE / part, backend, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return backend / "main.py"
