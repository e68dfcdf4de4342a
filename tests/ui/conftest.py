"""The page in a real browser, and the stub host that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ui.browsing import Forwarder, PageErrors, Pages, running_browser

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import Browser, Page

STRATEGY = "albatross device=cpu batch=8"


# For this folder only: while the browser's driver is there, asyncio.run refuses to work in the thread of the tests.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def page_errors() -> PageErrors:
    """``page_errors.expect(pattern)`` for errors that a test causes; any other fails it at its end."""
    return PageErrors()


@pytest.fixture
def pages(browser: Browser, page_errors: PageErrors) -> Iterator[Pages]:
    """``pages.open(locale=, width=, height=, dark=)``, for tests that need more than one page, or another one."""
    opener = Pages(browser, page_errors)
    yield opener
    opener.close()
    assert page_errors.unexpected() == []


@pytest.fixture
def page(pages: Pages) -> Page:
    """An empty page, in English, 1280 x 800, light."""
    return pages.open()


@pytest.fixture(scope="module")
def ui_host() -> Iterator[LiveHost]:
    """The stub host with this plugin, in this process; a strategy may name another executor (see ChosenExecutor)."""
    pytest.importorskip("torch")
    pytest.importorskip("fastapi")
    from host.live import LiveHost

    from albatross_plugin import hooks
    from albatross_plugin.bench.chosen_executor import ChosenExecutor

    with pytest.MonkeyPatch.context() as patch, LiveHost(("albatross", hooks), ("executor", ChosenExecutor())) as running:
        patch.setenv("ALBATROSS_GATHER_MS", "0")
        yield running


@pytest.fixture(scope="module")
def ui_url(ui_host: LiveHost) -> str:
    """Address of the page."""
    return f"{ui_host.url}/albatross/ui"


@pytest.fixture
def forwarder(ui_host: LiveHost) -> Iterator[Forwarder]:
    """Another way to ``ui_host``, which counts connections."""
    with Forwarder(ui_host.port) as running:
        yield running


@pytest.fixture(scope="package")
def ui_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for checkpoints."""
    return tmp_path_factory.mktemp("ui-models")


@pytest.fixture(scope="module")
def ui_load(ui_host: LiveHost) -> Callable[..., LiveHost]:
    """``ui_load(path, strategy)`` serves a checkpoint by HTTP; nothing is done where that is what is served."""
    served: list[object] = []

    def serve(path: Path, strategy: str = STRATEGY, *, again: bool = False) -> LiveHost:
        if again or served != [path, strategy] or ui_host.state.model is None:
            answer = ui_host.switch(path, strategy)
            assert answer.status_code == 200, answer.text
            served[:] = [path, strategy]
        return ui_host

    return serve
