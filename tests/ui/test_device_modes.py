"""The device mode "CUDA High Performance" on the page: offered, never chosen by itself, with its hint in each language."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from ui.browsing import PageErrors, Pages

MODE = "CUDA High Performance"
HINTS = {"en-US": "(RWKV-7 .pth only)", "zh-CN": "(仅限 RWKV-7 .pth)", "ja-JP": "(RWKV-7 .pth のみ)"}


def _offered(page: Page) -> Page:
    expect(page.locator(f"#device-mode option[value='{MODE}']")).to_have_count(1)
    return page


@pytest.mark.parametrize("locale", HINTS)
def test_the_mode_is_offered_with_its_hint_and_not_chosen(pages: Pages, ui_url: str, locale: str) -> None:
    page = pages.open(locale)
    page.goto(ui_url)
    assert HINTS[locale] in _offered(page).inner_text(f"#device-mode option[value='{MODE}']")
    assert page.input_value("#device-mode") == "" and not page.is_visible("#strategy-text")


def test_the_mode_gives_its_strategy_and_is_forgotten_by_the_next_visit(page: Page, page_errors: PageErrors, ui_url: str) -> None:
    page_errors.expect(r"switch-model")
    page.goto(ui_url)
    _offered(page).select_option("#device-mode", MODE)
    assert page.inner_text("#strategy-text") == "albatross workers=1 batch=32"
    page.fill("#model-path", "not-there.pth")
    with page.expect_request("**/switch-model") as asked:
        page.click("#load-button")
    assert asked.value.post_data_json["strategy"] == "albatross workers=1 batch=32"
    expect(page.locator("#load-outcome")).to_contain_text("not-there.pth")
    page.fill("#field-workers", "2")
    page.fill("#field-batch", "64")
    assert page.inner_text("#strategy-text") == "albatross workers=2 batch=64"
    for _ in range(2):
        page.reload()
        assert _offered(page).input_value("#device-mode") == ""
        assert page.input_value("#model-path") == "not-there.pth", "what was loaded is remembered, not on which device"
