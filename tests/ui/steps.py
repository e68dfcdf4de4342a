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
    expect(page.locator(f"#{tab}")).to_be_visible()


def load(page: Page, path: Path, strategy: str = ON_THE_CPU) -> None:
    """Load a checkpoint by the tab Model, with a strategy in the user's own words."""
    show(page, "model")
    page.fill("#model-path", str(path))
    page.get_by_label("Device").select_option(label="Other strategy")
    page.fill("#strategy-other", strategy)
    page.click("#load-button")
    expect(page.locator("#load-outcome")).to_contain_text("Loaded", timeout=60_000)
