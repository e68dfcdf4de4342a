"""Where a relative model, state or tokenizer path is looked for."""

from __future__ import annotations

import os
from pathlib import Path


def candidates(path: str) -> list[Path]:
    """Full paths for a relative one: below the working folder, its parent and this package's parent, each also in build/bin."""
    here = Path(__file__).resolve().parent
    roots = [Path.cwd(), Path.cwd().parent, here, here.parent]
    return [base / path for root in roots for base in (root, root / "build" / "bin")]


def resolve(path: str) -> str:
    """The first existing file for ``path``, else ``path`` itself. An empty path, a NUL and a name too long find nothing, without error."""
    if not path or "\0" in path or os.path.isabs(path):
        return path
    try:
        return next((str(candidate) for candidate in candidates(path) if candidate.is_file()), path)
    except OSError:
        # A name that is too long.
        return path
