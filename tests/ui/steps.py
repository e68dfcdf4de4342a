"""What a user does on the page, by the names that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

ON_THE_CPU = "albatross device=cpu batch=32"
TABS = ("model", "status", "chat", "batch")


def show(page: Page, tab: str) -> None:
    page.click(f"#tab-{tab}")
    expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")


def load(page: Page, path: Path, strategy: str = ON_THE_CPU) -> None:
    """Load a checkpoint by the tab Model, with a strategy in the user's own words."""
    show(page, "model")
    page.fill("#model-path", str(path))
    page.get_by_label("Device mode").select_option(label="Other strategy")
    page.fill("#strategy-other", strategy)
    page.click("#load-button")
    expect(page.locator("#load-outcome .ok")).to_contain_text(path.stem, timeout=30_000)


def chat(page: Page, question: str) -> str:
    """Ask in the tab Chat; the answer when it is whole."""
    show(page, "chat")
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_role("button", name="Send", exact=True).click()
    answer = page.locator(".chat-model").last
    expect(answer).to_have_attribute("data-end", "done")
    return answer.locator(".chat-text").inner_text()
