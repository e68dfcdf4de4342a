"""Packages that tests compare with. They are no dependency of the product."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest


def need(name: str) -> None:
    """Skip the test if the top-level package ``name`` is not installed. It is not imported. With CI set a skip is a failure."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def load(name: str) -> ModuleType:
    """Import ``name``, or skip the test if it is not installed."""
    need(name.partition(".")[0])
    return importlib.import_module(name)
