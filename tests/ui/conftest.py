"""The page in a real browser, and the stub host that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ui.browsing import Forwarder, PageErrors, Pages, running_browser

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import Browser, Page

BROWSER = pytest.StashKey["Browser"]()
STRATEGY = "albatross device=cpu batch=8"


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Browser:
    """One browser for the tests of this folder, as long as they follow each other.

    While its driver is there an event loop counts as running in this thread, so that asyncio.run would fail in tests of other folders.
    Without an __init__.py a folder is no package, which pytest would have a scope for.
    """
    folder = next(node for node in request.node.listchain() if node.path == Path(__file__).parent)
    if BROWSER not in folder.stash:
        running = ExitStack()
        folder.stash[BROWSER] = running.enter_context(running_browser())

        def end() -> None:
            del folder.stash[BROWSER]
            running.close()

        folder.addfinalizer(end)
    return folder.stash[BROWSER]


@pytest.fixture
def page_errors() -> PageErrors:
    """``page_errors.expect(pattern)`` for errors that a test causes; any other fails it at its end."""
    return PageErrors()


@pytest.fixture
def pages(browser: Browser, page_errors: PageErrors) -> Iterator[Pages]:
    """``pages.open(locale=, width=, height=, dark=, touch=)``, for tests that need more than one page, or another one."""
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


@pytest.fixture(scope="session")
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
