"""The stub host is put through the checks that Runners behind the launcher are put through: it must be what they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

for package in ("torch", "fastapi", "uvicorn", "httpx", "psutil", "rwkv"):
    pytest.importorskip(package)

from contract import host_checks
from contract.models import Models, models_of_this_run
from contract.served import Served

# The host's own tests load a real .gguf and other strategies, and end it.
LEFT_OUT = (host_checks.gguf, host_checks.other_strategy, host_checks.switch, host_checks.leave)
CHECKS = {check.__name__: check for check in host_checks.CHECKS if check not in LEFT_OUT}


@pytest.fixture(scope="module")
def models() -> Models:
    return models_of_this_run()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served([sys.executable, "-m", "host_stub"]) as server:
        yield server


@pytest.mark.parametrize("name", CHECKS)
def test_the_stub_host(served: Served, models: Models, name: str) -> None:
    CHECKS[name](served, models)
