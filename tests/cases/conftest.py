from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import tiny
from host.live import LiveHost

from albatross_plugin import hooks
from albatross_plugin.bench.chosen_executor import ChosenExecutor

STRATEGY = "albatross device=cpu batch=4"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("case-models")


@pytest.fixture(scope="session")
def random_model(models: Path) -> Path:
    return tiny.write(models / "random.pth", tiny.random_checkpoint(width=64))


@pytest.fixture(scope="module")
def host() -> Iterator[LiveHost]:
    """The stub host with this plugin, in this process; a strategy may name another executor."""
    with pytest.MonkeyPatch.context() as patch, LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as running:
        # Hundreds of lone requests: none of them waits for a sibling.
        patch.setenv("ALBATROSS_GATHER_MS", "0")
        yield running


Load = Callable[..., LiveHost]


@pytest.fixture(scope="module")
def load(host: LiveHost, models: Path) -> Load:
    """Serve a script model, or the checkpoint at a path; nothing is done where that is what is served."""
    served: list[object] = []

    def serve(what: list[int] | Path, strategy: str = STRATEGY, *, again: bool = False) -> LiveHost:
        path = what if isinstance(what, Path) else models / ("script-" + "-".join(map(str, what)) + ".pth")
        if not path.exists():
            tiny.write(path, tiny.script_checkpoint(what))  # type: ignore[arg-type]
        if again or served != [path, strategy] or host.state.model is None:
            answer = host.switch(path, strategy)
            assert answer.status_code == 200, answer.text
            served[:] = [path, strategy]
        return host

    return serve
