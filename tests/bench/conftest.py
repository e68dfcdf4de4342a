"""A small OpenAI-style server for the clients under test."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from bench.fake_server import FakeServer, serving


@pytest.fixture
def fake() -> Generator[FakeServer, None, None]:
    with serving() as server:
        yield server
