"""What every test shares: a skip that CI does not accept, and no OpenMP threads that spin."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

# Two OpenMP threads that spin collapse on a busy two-core machine; torch reads this once, when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"skipped although CI is set: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI set a skipped test is a failure: a missing peer would go unnoticed there. Only a card may be missing."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself; tests under gpu/ may."""
    report = yield
    if os.environ.get("CI") and report.outcome == "skipped" and "gpu" not in collector.path.parts:
        _refuse_skip(report)
    return report
