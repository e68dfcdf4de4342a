from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import tiny
from faults.asking import SCRIPT, Faulty
from faults.executor import hangs
from host.live import LiveHost

from albatross_plugin import hooks
from albatross_plugin.bench.chosen_executor import ChosenExecutor


@pytest.fixture(scope="module")
def live() -> Iterator[LiveHost]:
    with LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as running:
        yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("models") / "script.pth", tiny.script_checkpoint(SCRIPT))


@pytest.fixture(scope="module")
def faulty_host(live: LiveHost, model: Path) -> Faulty:
    return Faulty(live, model)


@pytest.fixture
def faulty(faulty_host: Faulty) -> Iterator[Faulty]:
    """A served host whose steps fail when a request asks for it."""
    yield faulty_host
    hangs.release()
