from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny
from stub import StubHost

STRATEGY = "albatross device=cpu batch=4"


@pytest.fixture(scope="session")
def host() -> Iterator[StubHost]:
    with StubHost(environ={"ALBATROSS_PROFILE": "1"}) as running:
        yield running


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def load(host: StubHost, models: Path) -> Callable[..., StubHost]:
    """Serve a script: the model that answers its first token with the rest of it."""

    def serve(script: list[int], strategy: str = STRATEGY) -> StubHost:
        path = models / ("script-" + "-".join(map(str, script[:12])) + f"-{len(script)}.pth")
        if not path.exists():
            tiny.write(path, tiny.script_checkpoint(script))
        answer = host.switch(path, strategy)
        assert answer.status_code == 200, answer.text
        return host

    return serve


@pytest.fixture
def random_host(host: StubHost, models: Path) -> StubHost:
    path = models / "random.pth"
    if not path.exists():
        tiny.write(path, tiny.random_checkpoint())
    answer = host.switch(path, STRATEGY)
    assert answer.status_code == 200, answer.text
    return host
