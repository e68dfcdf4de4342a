from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from host.live import LiveHost
from host.word_plugin import WordPlugin


@pytest.fixture
def plugin() -> WordPlugin:
    return WordPlugin()


@pytest.fixture
def host(plugin: WordPlugin) -> Iterator[LiveHost]:
    with LiveHost(("words", plugin)) as running:
        yield running


@pytest.fixture
def loaded(host: LiveHost) -> LiveHost:
    assert host.switch("any.pth", "words").status_code == 200
    return host


# F2: in chat the prompt ends in ":" (59), and there the script starts: "Hi", ".", "\n\n", "User", ":" and "more".
SCRIPT = [59, 1097, 47, 261, 24281, 40565]
SMILE = [33, 3319, 153, 129, 1097]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """random.pth, random.gguf (same weights), script.pth, smile.pth."""
    pytest.importorskip("torch")
    import tiny

    folder = tmp_path_factory.mktemp("host-models")
    tiny.write(folder / "random.pth", tiny.random_checkpoint())
    tiny.write_gguf(folder / "random.pth", folder / "random.gguf")
    tiny.write(folder / "script.pth", tiny.script_checkpoint(SCRIPT))
    tiny.write(folder / "smile.pth", tiny.script_checkpoint(SMILE))
    return folder
