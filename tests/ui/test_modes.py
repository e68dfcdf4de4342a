"""Fingers, low windows, colours of the system: what the page does for those who use it so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from ui import steps
from ui.fake_batches import FakeBatches, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from ui.browsing import Pages

FINGER = 36


@pytest.fixture(scope="module")
def server() -> Iterator[FakeBatches]:
    with serving() as running:
        yield running


def run(page: Page, server: FakeBatches) -> Page:
    """The tab Batch with a batch that has ended."""
    page.goto(server.page)
    steps.fill(page, "Once", 20)
    steps.start(page)
    steps.ended(page)
    return page


def test_a_tap_opens_a_text_and_another_closes_it(pages: Pages, server: FakeBatches) -> None:
    page = run(pages.open(width=360, height=740, touch=True), server)
    expect(page.locator(".batch-keys-touch")).to_be_visible()
    expect(page.locator(".batch-keys")).to_be_hidden()
    first, second = steps.cell(page, 0), steps.cell(page, 1)
    first.tap()
    expect(first).to_have_attribute("data-open", "pin")
    second.tap()
    expect(second).to_have_attribute("data-open", "pin")
    expect(page.locator(".cell[data-open]")).to_have_count(1)
    second.locator(".cell-tool", has_text="Close").tap()
    expect(page.locator(".cell[data-open]")).to_have_count(0)
    first.tap()
    first.locator(".cell-head").tap(position={"x": 20, "y": 20})
    expect(page.locator(".cell[data-open]")).to_have_count(0)


def test_the_hints_are_for_the_pointer_that_there_is(pages: Pages, server: FakeBatches) -> None:
    for width in (360, 1280):
        for touch in (False, True):
            page = pages.open(width=width, touch=touch)
            page.goto(server.page)
            shown = [page.locator(f".batch-keys{kind}").is_visible() for kind in ("", "-touch")]
            assert shown == [not touch, touch], width


def test_what_is_tapped_is_large_enough(pages: Pages, server: FakeBatches) -> None:
    page = run(pages.open(width=360, height=740, touch=True), server)
    steps.cell(page, 0).tap()
    expect(page.locator(".cell-tools")).to_be_visible()
    small = "(nodes, least) => nodes.filter((node) => node.getBoundingClientRect().height < least).map((node) => node.outerHTML)"
    for tab in steps.TABS:
        steps.show(page, tab)
        targets = page.locator("button:visible, select:visible, summary:visible, .segments label:visible, .batch-file label:visible")
        assert (tab, targets.evaluate_all(small, FINGER)) == (tab, [])


def test_in_a_low_window_the_head_makes_room(pages: Pages, server: FakeBatches) -> None:
    for width, height in ((640, 400), (740, 360)):
        page = run(pages.open(width=width, height=height), server)
        for tab in steps.TABS:
            steps.show(page, tab)
            assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width], tab
        page.locator(".grid").scroll_into_view_if_needed()
        page.locator(".grid").evaluate("grid => grid.scrollIntoView()")
        seen = page.evaluate(
            "[document.querySelector('.top').getBoundingClientRect().bottom, document.querySelector('.grid').clientHeight]"
        )
        assert seen[0] <= 0 and 200 <= seen[1] <= height


def test_in_the_systems_colours_what_is_chosen_is_told_apart(page: Page, server: FakeBatches) -> None:
    page.emulate_media(forced_colors="active")
    run(page, server)
    look = "node => { const { borderBottomColor, outlineStyle } = getComputedStyle(node); return [borderBottomColor, outlineStyle]; }"
    assert page.locator("#tab-batch").evaluate(look)[0] != page.locator("#tab-chat").evaluate(look)[0]
    chosen, other = (page.locator(f"label[for=batch-filter-{name}]").evaluate(look)[1] for name in ("all", "done"))
    assert chosen == "solid" and other == "none"
