"""The tab Status: the engine's figures, what is shown where they are missing, and the chart of the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cases.scripts import tokens, write_script
from host.live import LiveHost
from ui.browsing import PageErrors, Pages, until
from ui.fake_api import PAGE, FakeApi, fake_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHART = "() => import('/albatross/ui/chart.js').then(({ Chart, ticks }) => { %s })"
# A page that comes to the front asks without waiting for the next second.
AT_ONCE = "document.dispatchEvent(new Event('visibilitychange'))"
ENGINE: dict[str, Any] = {
    "model": "m",
    "phase": "ready",
    "error": "",
    "loaded_bytes": 4,
    "total_bytes": 4,
    "slots": {"total": 64, "active": 12},
    "queue": {"length": 3, "limit": 4096, "tokens": 9, "oldest_wait_s": 1.25, "estimated_wait_s": 61, "priorities": [], "next": []},
    "requests": {"accepted": 1200, "rejected": 5, "stop": 1000, "length": 100, "abort": 80, "error": 20},
    "tokens": {"prompt": 5000, "generated": 123456},
    "decode_tokens_per_second": 1234.5,
    "prefill_tokens_per_second": 50.25,
    "workers": [
        {"worker": 0, "phase": "ready", "error": "", "memory_bytes": 3 << 30, "peak_memory_bytes": 4 << 30, "free_memory_bytes": 1 << 30},
        {"worker": 1, "phase": "ready", "error": "", "memory_bytes": 1 << 30, "peak_memory_bytes": 1 << 30, "free_memory_bytes": None},
    ],
}
OWN: dict[str, Any] = {"model": "m", "state": "ready", "engine": ENGINE, "batches": {"running": 2, "items": 700}, "version": "1.2.3"}
HOST: dict[str, Any] = {"status": 3, "device_name": "Some GPU"}


@pytest.fixture(scope="module")
def api() -> Iterator[FakeApi]:
    with fake_api() as running:
        yield running


@pytest.fixture(scope="module")
def opened(browser: Browser, api: FakeApi) -> Iterator[Page]:
    pages = Pages(browser, PageErrors())
    page = pages.open()
    api.host = HOST
    page.goto(f"{api.url}{PAGE}#status")
    yield page
    pages.close()


@pytest.fixture
def status(opened: Page, page_errors: PageErrors) -> Iterator[Page]:
    """The tab, one page for all."""
    page_errors.watch(opened)
    yield opened
    assert page_errors.unexpected() == []


def tell(page: Page, api: FakeApi, own: dict[str, Any] | None, host: dict[str, Any] | None = None) -> None:
    """Answer so from now on, and wait until the page has read it."""
    api.own, api.host = own, HOST if host is None else host
    # The second question comes when the first one's answer has been read.
    for _ in range(2):
        asked = api.asked
        page.evaluate(AT_ONCE)
        until(page, lambda asked=asked: api.asked > asked)  # type: ignore[misc]


def pill(page: Page) -> str:
    return page.locator("#status .pill").inner_text()


def facts(page: Page) -> dict[str, str]:
    """The named values that can be seen."""
    rows = page.locator("#status .facts > div:visible").evaluate_all(
        "rows => rows.map((row) => [...row.children].map((each) => each.textContent))"
    )
    return dict(rows)


def label(page: Page) -> str:
    return page.locator("#status .chart").get_attribute("aria-label") or ""


def meters(page: Page) -> list[list[str | None]]:
    bars = page.locator("#status .meter:visible")
    names = ("aria-label", "aria-valuenow", "aria-valuemax", "aria-valuetext")
    return bars.evaluate_all("(bars, names) => bars.map((bar) => names.map((name) => bar.getAttribute(name)))", names)  # type: ignore[no-any-return]


def test_the_figures_of_the_engine_are_shown(status: Page, api: FakeApi) -> None:
    tell(status, api, OWN)
    until(status, lambda: "Device" in facts(status))
    assert status.locator("#status h2").inner_text() == "m" and pill(status) == "ready"
    assert facts(status) == {
        "Workers": "2",
        "Slots per worker": "32",
        "Device": "Some GPU",
        "Memory": "4 GiB (peak 5 GiB)",
        "Free memory": "1 GiB",
        "Plugin": "1.2.3",
        "Longest wait": "1.3 s",
        "Expected wait": "1 min 1 s",
        "Running": "2",
        "Their texts": "700",
        "Accepted": "1,200",
        "Ended by themselves": "1,000",
        "Hit the token limit": "100",
        "Stopped": "80",
        "Failed": "20",
        "Refused": "5",
        "Generated": "123,456",
        "Of prompts": "5,000",
    }
    assert meters(status) == [["Slots", "12", "64", "12 of 64 taken"], ["Queue", "3", "4096", "3 of 4,096 waiting"]]
    assert label(status) == "Generated tokens per second over the last 2 minutes. Now: 1,235 tokens/s. Highest: 1,235."
    assert status.locator("#status .chart-value").all_text_contents() == ["0", "500", "1,000", "1,500"]
    status.select_option("#language", "zh")
    assert facts(status)["预计等待"] == "1 分 1 秒" and "当前：1,235 token/秒" in label(status)
    status.select_option("#language", "en")


def test_a_server_that_is_gone_is_said_and_found_again(status: Page, api: FakeApi, page_errors: PageErrors) -> None:
    page_errors.expect("ERR_EMPTY_RESPONSE|^request: ")
    tell(status, api, OWN)
    api.own = None
    status.evaluate(AT_ONCE)
    until(status, lambda: pill(status) == "no connection")
    assert "Now: unknown" in label(status) and facts(status)["Generated"] == "123,456", "the last figures stay"
    tell(status, api, OWN)
    assert pill(status) == "ready" and "Now: 1,235 tokens/s" in label(status)
    assert api.most == 1, "one question at a time"


@pytest.mark.parametrize(
    ("own", "host", "state", "title"),
    [
        ({"model": None, "state": "offline", "engine": None}, {"status": 0}, "no model loaded", "No model is loaded."),
        ({"model": "other", "state": "foreign", "engine": None, "batches": None}, {"status": 3}, "ready, without albatross", "other"),
        ({}, {}, "asking the server…", "Model"),
        ({"state": "ready", "engine": {"slots": [], "queue": 7, "workers": [None, {}], "tokens": {"prompt": "x"}}}, {}, "ready", "Model"),
        ({"state": 7, "engine": "?", "model": ["<b>"], "batches": [1]}, {"status": "x", "device_name": 5}, "asking the server…", "Model"),
    ],
)
def test_what_a_server_does_not_tell_is_not_shown(
    status: Page, api: FakeApi, own: dict[str, Any], host: dict[str, Any], state: str, title: str
) -> None:
    tell(status, api, own, host)
    # The host's part comes a little later.
    until(status, lambda: (pill(status), status.locator("#status h2").inner_text()) == (state, title))
    assert "Now: unknown" in label(status) and meters(status) == []
    assert status.locator("#status a:visible").all_text_contents() == ["Load a model"] * (state == "no model loaded")
    assert "Generated" not in facts(status)
    assert status.locator("#status .notice:visible").count() == int("without" in state)


def test_a_model_without_albatross_has_no_chart(status: Page, api: FakeApi) -> None:
    tell(status, api, OWN)
    assert status.locator("#status .chart").is_visible()
    tell(status, api, {"model": "other", "state": "foreign", "engine": None, "batches": None})
    assert status.get_by_text("it has no slots, queue or rates to show").is_visible()
    assert not status.locator("#status .chart").is_visible() and not status.get_by_text("Tokens per second").is_visible()
    tell(status, api, OWN)
    assert status.locator("#status .chart").is_visible()


def test_a_load_shows_how_far_it_is_and_a_failed_engine_says_why(status: Page, api: FakeApi) -> None:
    engine = {**ENGINE, "phase": "loading", "loaded_bytes": 512 << 20, "total_bytes": 2 << 30, "slots": {"total": 0, "active": 0}}
    tell(status, api, {"model": None, "state": "loading", "engine": engine})
    assert pill(status) == "loading"
    assert meters(status)[0] == ["Loading", str(512 << 20), str(2 << 30), "0.54 / 2.15 GB"]
    tell(status, api, {**OWN, "engine": {**ENGINE, "phase": "down", "error": "out of <memory>"}})
    assert pill(status) == "failed"
    assert status.locator("#status .notice").inner_text() == "The engine is down: out of <memory>"


def test_the_axis_of_the_chart_has_round_numbers(status: Page) -> None:
    found = status.evaluate(CHART % "return [0, 0.3, 1, 3, 9, 10, 99, 101, 1261, 25000].map((value) => ticks(value));")
    assert found == [
        [0, 1, 2, 3, 4],
        [0, 0.1, 0.2, 0.3],
        [0, 0.25, 0.5, 0.75, 1],
        [0, 1, 2, 3],
        [0, 2.5, 5, 7.5, 10],
        [0, 2.5, 5, 7.5, 10],
        [0, 25, 50, 75, 100],
        [0, 50, 100, 150],
        [0, 500, 1000, 1500],
        [0, 10000, 20000, 30000],
    ]


def test_one_axis_writes_its_numbers_in_one_way(status: Page) -> None:
    script = """async () => {
      const { ticks } = await import("/albatross/ui/chart.js");
      const { short } = await import("/albatross/ui/numbers.js");
      return [0, 5, 5000, 12345, 100000].map((highest) => ticks(highest)).map((axis) => axis.map((value) => short(value, axis.at(-1))).join(" "));
    }"""
    assert status.evaluate(script) == ["0 1 2 3 4", "0 2 4 6", "0 2,000 4,000 6,000", "0 5K 10K 15K", "0 25K 50K 75K 100K"]
    status.select_option("#language", "zh")
    assert status.evaluate(script)[-1] == "0 2.5万 5万 7.5万 10万"
    status.select_option("#language", "en")


def test_the_chart_has_holes_forgets_and_fits_its_box(status: Page) -> None:
    found = status.evaluate(
        CHART
        % """
        const chart = new Chart({ seconds: 10, gap: 2 });
        document.getElementById("status").append(chart.svg);
        const seen = () => {
          chart.draw();
          return [...chart.svg.querySelectorAll("path.chart-line, circle")].map((each) => each.getAttribute("d")?.split("L").length ?? 1);
        };
        const told = [];
        told.push(seen());
        for (const [time, value] of [[1, 5], [2, 6], [3, null], [4, 7], [5, 8], [6, NaN], [7, -1], [8, 9]]) chart.push(value, time);
        told.push(seen());
        chart.push(10, 13);
        told.push(seen(), chart.highest);
        chart.svg.style.width = "300px";
        return new Promise((done) => setTimeout(() => {
          told.push(chart.svg.getAttribute("viewBox").split(" ")[2]);
          chart.close();
          chart.svg.remove();
          done(told);
        }, 100));
        """
    )
    # One line of two, one of two, a lone point. At 13 s the first two are forgotten, and 8 s and 13 s are too far apart for a line.
    assert found == [[], [2, 2, 1], [2, 1, 1], 10, "300"]


def test_a_model_that_works_moves_the_figures(page: Page, ui_load: Callable[..., LiveHost], ui_models: Path) -> None:
    host = ui_load(write_script(ui_models / "status.pth", *tokens("a", "b", "c")))
    page.goto(f"{host.url}{PAGE}#status")
    page.get_by_text("0 of 8 taken").wait_for()
    # The device is told by the host's own status, which is asked for after the engine's.
    until(page, lambda: "Device" in facts(page))
    before = facts(page)
    assert before["Workers"] == "1" and before["Slots per worker"] == "8" and before["Device"] == "CPU" and before["Running"] == "0"
    body = {"prompt": "!", "count": 20, "stream": False, "temperature": 0, "max_tokens": 3}
    assert host.client.post("/albatross/batch/completions", json=body).status_code == 200
    until(page, lambda: facts(page)["Hit the token limit"] == "20")
    assert facts(page)["Generated"] == "60" and facts(page)["Of prompts"] == "20"
    assert page.locator("#status .notice:visible").count() == 0
