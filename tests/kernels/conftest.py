"""The registers and spills of the compiled kernels, at the end of the run."""

from __future__ import annotations

import pytest

REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[str]:
    """Lines to show when all tests have run."""
    return request.config.stash.setdefault(REPORT, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(REPORT, [])
    if lines:
        terminalreporter.section("registers of the kernels (+ bytes spilled)")
        for line in lines:
            terminalreporter.write_line(line)
