"""Missing: why an interception point is not in force. The Runner starts all the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Missing(LookupError):
    """The Runner's module does not have what this point enters by."""


def member(module: ModuleType, *names: str) -> Any:
    """The first of ``names`` that the module has. Raises Missing."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise Missing(f"{module.__name__} has no {' or '.join(names)}")
