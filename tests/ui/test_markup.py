"""A model that says markup: the page shows it as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")
pytest.importorskip("torch")

from cases.scripts import tokens, world, write_script
from playwright.sync_api import expect
from ui import steps

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

MARKUP = '<img src="x" onerror=alert(1)>'


@pytest.fixture
def dialogs(page: Page) -> list[str]:
    """Messages of the dialogs that opened on ``page``."""
    seen: list[str] = []

    def close(dialog: Dialog) -> None:
        seen.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", close)
    return seen


def test_the_text_would_run_where_it_is_taken_as_markup(page: Page, dialogs: list[str]) -> None:
    page.set_content(MARKUP)
    page.wait_for_function("document.images.length === 1 && document.images[0].complete")
    assert dialogs == ["1"]


def test_a_model_that_says_markup_is_shown_as_text(page: Page, dialogs: list[str], ui_url: str, ui_models: Path) -> None:
    script = world().encode(MARKUP)
    assert len(script) > 10 and not set(script) & set(tokens("!", ":"))
    page.goto(ui_url)
    steps.load(page, write_script(ui_models / "image.pth", *script))
    own = page.locator("img").count()
    assert steps.chat(page, MARKUP) == MARKUP
    assert page.locator(".chat-user .chat-text").inner_text() == MARKUP
    steps.fill(page, "!", 3)
    steps.start(page)
    steps.ended(page)
    assert steps.walk(page) == {item: ("done", MARKUP) for item in range(3)}
    steps.cell(page, 1).click()
    expect(steps.cell(page, 1).locator(".cell-tools")).to_be_visible()
    assert steps.cell(page, 1).locator(".cell-text").inner_text() == MARKUP
    assert page.locator("img").count() == own and dialogs == []
