"""The page from loading a model to the exported texts, in a real browser, on the real host and engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("torch")

from cases.scripts import world, write_script
from host.live import wait_for
from playwright.sync_api import expect
from ui import steps

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import Page

TEXT = " the quick brown fox jumps over a lazy dog.\n你好，世界🙂"
SLOTS = 32


@pytest.fixture(scope="module")
def script_model(ui_models: Path) -> Path:
    return write_script(ui_models / "script.pth", *world().encode(TEXT))


@pytest.fixture
def batch(page: Page, ui_url: str, ui_load: Callable[..., LiveHost], script_model: Path) -> Page:
    """The tab Batch, with the script model served."""
    ui_load(script_model, steps.ON_THE_CPU)
    page.goto(ui_url + "#batch")
    return page


def engine(host: LiveHost) -> dict[str, Any]:
    return dict(host.client.get("/albatross/status").json())


def free(host: LiveHost) -> bool:
    """Whether all slots are free, nothing waits and no batch runs."""
    status = engine(host)
    return status["engine"]["slots"]["active"] == 0 and status["engine"]["queue"]["length"] == 0 and status["batches"]["running"] == 0


def test_a_model_is_loaded_and_says_200_texts(page: Page, ui_host: LiveHost, ui_url: str, script_model: Path) -> None:
    page.goto(ui_url)
    steps.load(page, script_model)
    status = engine(ui_host)
    assert (status["model"], status["state"], status["engine"]["slots"]["total"]) == ("script", "ready", SLOTS)
    steps.fill(page, "!", 200)
    steps.start(page)
    steps.ended(page)
    bar = page.locator("#batch progress")
    assert bar.evaluate("(bar) => [bar.value, bar.max]") == [200, 200]
    assert steps.counts(page) == {"all": 200, "done": 200}
    assert steps.walk(page) == {item: ("done", TEXT) for item in range(200)}
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export JSONL").click()
    lines = [json.loads(line) for line in saved.value.path().read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == list(range(200)) and saved.value.suggested_filename.endswith(".jsonl")
    assert {(line["prompt"], line["text"], line["status"], line["finish_reason"]) for line in lines} == {("!", TEXT, "done", "stop")}
    assert len({line["seed"] for line in lines}) == 200


def test_a_batch_stopped_half_way_keeps_what_it_has(batch: Page, ui_host: LiveHost) -> None:
    steps.fill(batch, "!", 1000)
    steps.start(batch)
    steps.reached(batch, 100)
    batch.get_by_role("button", name="Stop", exact=True).click()
    steps.ended(batch)
    counts = steps.counts(batch)
    assert set(counts) == {"all", "done", "aborted"} and counts["done"] >= 100 and counts["done"] + counts["aborted"] == 1000
    wait_for(lambda: free(ui_host), 5)
    seen = steps.walk(batch)
    assert len(seen) == 1000
    for state, text in seen.values():
        assert text == TEXT if state == "done" else state == "aborted" and TEXT.startswith(text)
    batch.locator(".batch-filter label", has_text="aborted").click()
    assert [state for state, _ in steps.walk(batch).values()] == ["aborted"] * counts["aborted"]


def test_a_reload_ends_the_batch_and_shows_what_was_there(batch: Page, ui_host: LiveHost) -> None:
    steps.fill(batch, "!", 1000)
    steps.start(batch)
    steps.reached(batch, 100)
    batch.reload()
    wait_for(lambda: free(ui_host), 5)
    notice = batch.locator("#batch .batch-results .notice")
    expect(notice).to_be_visible()
    counts = steps.counts(batch)
    assert counts["all"] == 1000 and counts["done"] >= 100 and counts["done"] + counts["error"] == 1000
    assert f"{counts['error']:,}" in notice.inner_text()
    seen = steps.walk(batch)
    assert {state for state, _ in seen.values()} == {"done", "cut"} and len(seen) == 1000
    for state, text in seen.values():
        assert text == TEXT if state == "done" else TEXT.startswith(text.rstrip("\ufffd"))
    steps.fill(batch, "!", 3)
    steps.start(batch)
    steps.ended(batch)
    assert steps.walk(batch) == {item: ("done", TEXT) for item in range(3)}, "the page goes on as before"


def test_all_of_it_goes_by_keys(batch: Page, ui_url: str, ui_host: LiveHost, script_model: Path) -> None:
    batch.context.grant_permissions(["clipboard-read", "clipboard-write"])
    batch.goto("about:blank")
    batch.goto(ui_url)
    press, write = batch.keyboard.press, batch.keyboard.type

    def tab_to(selector: str, *, back: bool = False) -> None:
        for _ in range(40):
            if batch.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
            press("Shift+Tab" if back else "Tab")
        raise AssertionError(f"{selector} is not reached")

    tab_to("#model-path")
    write(str(script_model))
    tab_to("#device-mode")
    press("End")
    tab_to("#strategy-other")
    write("albatross device=cpu batch=16")
    press("Enter")
    expect(batch.locator("#load-outcome .ok")).to_contain_text("script", timeout=30_000)
    assert engine(ui_host)["engine"]["slots"]["total"] == 16
    tab_to("[role=tab]", back=True)
    press("End")
    tab_to("#batch-prompt")
    write("!")
    tab_to("#batch-count")
    press("Control+A")
    write("40")
    tab_to("#batch .batch-actions .primary")
    press("Enter")
    reach = batch.locator("#batch progress")
    expect(reach).to_have_js_property("max", 40)
    steps.ended(batch)
    tab_to(".cell")
    press("ArrowDown")
    press("ArrowRight")
    columns = int(batch.get_attribute(".grid-canvas", "aria-colcount") or 0)
    expect(steps.cell(batch, columns + 1)).to_be_focused()
    press("Control+End")
    expect(steps.cell(batch, 39)).to_be_focused()
    assert steps.cell(batch, 39).locator(".cell-tools").is_visible(), "the cell is open"
    press("c")
    expect(batch.locator(".batch-told")).to_contain_text("Copied")
    assert batch.evaluate("navigator.clipboard.readText()") == TEXT
    press("Enter")
    press("Escape")
    expect(steps.cell(batch, 39)).to_be_focused()
