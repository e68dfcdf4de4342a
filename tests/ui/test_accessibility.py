"""What axe finds in each tab, light and dark; nothing scrolls sideways on a narrow screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")
pytest.importorskip("torch")

from axe_playwright_python.sync_playwright import Axe
from cases.scripts import tokens, write_script
from playwright.sync_api import expect
from ui import steps

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import Page
    from ui.browsing import Pages

GRAVE = ("serious", "critical")


@pytest.fixture(scope="module", autouse=True)
def model(ui_load: Callable[..., LiveHost], ui_models: Path) -> None:
    ui_load(write_script(ui_models / "plain.pth", *tokens(" one", " two", " three")))


def findings(page: Page) -> list[str]:
    """Grave findings, each with the elements that it is about. What moves is let come to rest."""
    page.evaluate("Promise.allSettled(document.getAnimations().map((each) => each.finished))")
    return [
        f"{each['id']} ({each['impact']}): {node['html'][:200]}: {node.get('failureSummary', '')}"
        for each in Axe().run(page).response["violations"]
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]


def test_axe_would_find_something(page: Page) -> None:
    page.set_content("<html><body><img src='data:,'><p style='color: #aaa; background: #fff'>pale</p><button></button>")
    assert {each.partition(" ")[0] for each in findings(page)} >= {"image-alt", "color-contrast", "button-name", "html-has-lang"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_grave_findings_in_any_tab(pages: Pages, ui_url: str, dark: bool) -> None:
    page = pages.open(dark=dark)
    page.goto(ui_url)
    steps.chat(page, "a")
    steps.fill(page, "!", 40)
    steps.start(page)
    steps.ended(page)
    steps.cell(page, 1).click()
    expect(steps.cell(page, 1).locator(".cell-tools")).to_be_visible()
    for tab in steps.TABS:
        steps.show(page, tab)
        assert (tab, findings(page)) == (tab, [])
    page.click("#key-button")
    assert page.locator("dialog").is_visible() and findings(page) == []


def test_the_dark_scheme_has_other_colours(pages: Pages, ui_url: str) -> None:
    seen = []
    for dark in (False, True):
        page = pages.open(dark=dark)
        page.goto(ui_url)
        style = "(name) => getComputedStyle(document.body)[name]"
        seen.append((page.evaluate(style, "backgroundColor"), page.evaluate(style, "color")))
    (light, ink), (night, chalk) = seen
    assert brightness(light) > 200 > 80 > brightness(ink)
    assert brightness(night) < 60 < 180 < brightness(chalk)


def brightness(colour: str) -> float:
    """Mean of red, green and blue, 0 to 255."""
    parts = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3


@pytest.mark.parametrize("locale", ["en-US", "zh-CN", "ja-JP"])
def test_nothing_scrolls_sideways_at_360_pixels(pages: Pages, ui_url: str, locale: str) -> None:
    page = pages.open(locale, width=360, height=740)
    page.goto(ui_url)
    steps.fill(page, "!", 3, seed=1)
    steps.start(page)
    steps.ended(page)
    for tab in steps.TABS:
        steps.show(page, tab)
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360], tab
