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


def serve(host: StubHost, path: Path, strategy: str) -> None:
    """Switch, unless that is what is loaded already."""
    if host.loaded != (path, strategy):
        answer = host.switch(path, strategy)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def load(host: StubHost, models: Path) -> Callable[..., StubHost]:
    """Serve a script: the model that answers its first token with the rest of it."""

    def load_script(script: list[int], strategy: str = STRATEGY) -> StubHost:
        path = models / ("script-" + "-".join(map(str, script)) + ".pth")
        if not path.exists():
            tiny.write(path, tiny.script_checkpoint(script))
        serve(host, path, strategy)
        return host

    return load_script


@pytest.fixture
def random_host(host: StubHost, models: Path) -> StubHost:
    path = models / "random.pth"
    if not path.exists():
        tiny.write(path, tiny.random_checkpoint())
    serve(host, path, STRATEGY)
    return host
