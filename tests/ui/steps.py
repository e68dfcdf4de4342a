"""What a user does on the page, by the names that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

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


# --- the tab Batch ---


def fill(page: Page, prompt: str, count: int, **sampling: float) -> None:
    """One prompt, ``count`` times."""
    show(page, "batch")
    page.fill("#batch-prompt", prompt)
    page.fill("#batch-count", str(count))
    if sampling and not page.is_visible("#batch-max_tokens"):
        page.click("#batch .batch-sampling summary")
    for name, value in sampling.items():
        page.fill(f"#batch-{name}", str(value))


def start(page: Page) -> None:
    """Start the batch of the form; back when the server has accepted it."""
    with page.expect_response("**/albatross/batch/completions") as answer:
        page.click("#batch .batch-actions .primary:enabled")
    assert answer.value.status == 200, answer.value.text()
    expect(page.locator("#batch .batch-progress")).to_be_visible()


def counts(page: Page) -> dict[str, int]:
    """How many items are in each state, and ``all``, without zeros."""
    script = "() => [...document.querySelectorAll('.batch-filter label')].map((each) => [each.dataset.state, each.querySelector('.segment-count').textContent])"
    return {name: number for name, text in page.evaluate(script) if (number := int(text.replace(",", "")))}


def reached(page: Page, count: int, seconds: float = 30) -> None:
    """Wait until so many items have an end."""
    page.wait_for_function("(count) => document.querySelector('#batch progress').value >= count", arg=count, timeout=1000 * seconds)


def ended(page: Page, seconds: float = 30) -> None:
    """Wait for the end of the batch: the next one can be started."""
    expect(page.locator("#batch .batch-actions .primary")).to_be_enabled(timeout=1000 * seconds)


def walk(page: Page) -> dict[int, tuple[str, str]]:
    """State and text of every item, by scrolling through the grid from its top to its end, in a high window."""
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": 3000})
    seen: dict[str, list[str]] = page.evaluate(
        """async () => {
          const grid = document.querySelector("#batch .grid");
          const painted = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
          const seen = {};
          await painted();
          for (grid.scrollTop = 0; ; grid.scrollTop += grid.clientHeight) {
            await painted();
            for (const cell of grid.querySelectorAll(".cell:not([hidden])"))
              seen[cell.querySelector(".cell-id").textContent] = [cell.dataset.state, cell.querySelector(".cell-text").textContent];
            if (grid.scrollTop + grid.clientHeight >= grid.scrollHeight - 1) return seen;
          }
        }"""
    )
    page.set_viewport_size(size)
    return {int(name.removeprefix("#")): (state, text) for name, (state, text) in seen.items()}


def cell(page: Page, item: int) -> Locator:
    """The cell of an item that is in sight."""
    return page.locator(".cell", has=page.get_by_text(f"#{item}", exact=True))
