"""The tab Batch as somebody uses it: fill in, start, watch, stop, reload, take the texts along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest
from ui.browsing import Forwarder, PageErrors, Pages, until
from ui.fake_batches import DONE, FakeBatches, Script, Step, batch, event, serving, text_of, total, until_stopped, update

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CUT = "ERR_INCOMPLETE_CHUNKED_ENCODING"


@pytest.fixture(scope="module")
def served() -> Iterator[FakeBatches]:
    with serving() as server:
        yield server


@pytest.fixture
def server(served: FakeBatches) -> FakeBatches:
    served.reset()
    return served


@pytest.fixture(scope="module")
def kept(browser: Browser) -> Iterator[Page]:
    """One page that most of them use in turn: another one costs a second."""
    opener = Pages(browser, PageErrors())
    yield opener.open()
    opener.close()


@pytest.fixture
def tab(kept: Page, server: FakeBatches, page_errors: PageErrors) -> Iterator[Page]:
    """The tab, ready to begin, with nothing of an earlier batch."""
    kept.goto(f"{server.page.partition('#')[0]}/icon.svg")
    kept.evaluate("sessionStorage.clear()")
    page_errors.watch(kept)
    kept.goto(server.page)
    ready(kept)
    yield kept
    assert page_errors.unexpected() == []


def ready(page: Page) -> None:
    page.locator("#batch button.primary:enabled").wait_for()


def begin(page: Page, prompt: str = "Once", count: int = 10) -> None:
    page.locator("#batch-prompt").fill(prompt)
    page.locator("#batch-count").fill(str(count))
    page.locator("#batch button.primary").click()


def ended(page: Page, phase: str) -> None:
    page.locator(".batch-head p", has_text=phase).wait_for()


def counts(page: Page) -> dict[str, int]:
    found = page.locator(".batch-filter label").all_text_contents()
    return {word: int(number.replace(",", "")) for word, number in (text.split() for text in found)}


def test_ui_1_a_batch_of_200_reaches_its_end_over_two_connections(page: Page, server: FakeBatches) -> None:
    with Forwarder(int(server.server_address[1])) as way:
        page.goto(f"{way.url}/albatross/ui#batch")
        ready(page)
        way.reset()
        begin(page, count=200)
        page.get_by_text("200 of 200 finished").wait_for()
        assert way.peak <= 2
        page.close()
    (body,) = server.bodies
    assert body == {"prompt": "Once", "count": 200, "batch_id": body["batch_id"]}


def test_a_batch_is_shown_text_by_text(tab: Page, server: FakeBatches) -> None:
    page = tab
    begin(page)
    ended(page, "done")
    assert counts(page) == {"all": 10, "pending": 0, "running": 0, "done": 10, "aborted": 0, "error": 0}
    cells = page.locator(".cell:not([hidden])")
    assert cells.locator(".cell-text").all_text_contents() == [text_of(number, 3) for number in range(10)]
    assert page.locator("#batch progress").evaluate("bar => [bar.value, bar.max, bar.getAttribute('aria-label')]") == [
        10,
        10,
        "Finished texts",
    ]
    page.get_by_role("button", name="Clear").locator("visible=true").click()
    assert page.locator(".cell").count() == 0 and page.get_by_text("The texts appear here.").is_visible()


def test_ui_3_stop_half_way_keeps_what_is_there(tab: Page, server: FakeBatches) -> None:
    server.script = until_stopped
    page = tab
    begin(page)
    until(page, lambda: counts(page)["done"] == 5)
    assert page.locator("#batch button.primary").is_disabled()
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    ended(page, "stopped")
    assert page.locator("#batch progress").evaluate("bar => [bar.value, bar.max]") == [5, 10]
    assert page.get_by_text("5 of 10 finished").is_visible(), "what was stopped has not finished"
    assert counts(page) == {"all": 10, "pending": 0, "running": 0, "done": 5, "aborted": 5, "error": 0}
    page.get_by_text("aborted 5").click()
    assert page.locator(".cell:not([hidden]) .cell-text").all_text_contents() == ["half "] * 5
    assert len(server.stops) == len(server.bodies) == 1
    assert page.locator("#batch button.primary").is_enabled()


def test_ui_3_a_reload_keeps_the_texts_and_frees_the_server(tab: Page, server: FakeBatches) -> None:
    server.script = until_stopped
    page = tab
    begin(page)
    until(page, lambda: counts(page)["done"] == 5)
    page.reload()
    ended(page, "cut by leaving the page")
    assert page.get_by_text("5 of 10 finished").is_visible()
    assert server.left.wait(5), "the connection is closed, so that the server gives the slots back"
    assert counts(page)["done"] == 5 and counts(page)["error"] == 5
    assert page.get_by_text("5 texts were cut").is_visible()
    assert page.locator(".cell[data-state=cut] .cell-text").all_text_contents() == ["half "] * 5
    assert page.locator("#batch-prompt").input_value() == "Once" and page.locator("#batch-count").input_value() == "10"
    assert len(server.bodies) == 1, "nothing is sent again"


def test_ui_3_a_cut_stream_and_bad_events_are_told(tab: Page, server: FakeBatches, page_errors: PageErrors) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        yield batch(body, "running") + b"data: {no JSON\n\n" + update(0, "done", "whole", 1) + update(1, "running", "half", 1)
        yield server.stopped

    page_errors.expect(CUT)
    server.script = script
    page = tab
    begin(page, count=3)
    until(page, lambda: counts(page)["done"] == 1)
    server.stopped.set()
    ended(page, "cut")
    assert page.get_by_text("2 texts were cut").is_visible() and page.get_by_text("could not be read, and were left out: 1").is_visible()
    assert page.locator(".cell-state").all_text_contents()[:3] == ["done", "cut", "cut"]
    assert page.locator(".cell-text").all_text_contents()[:2] == ["whole", "half"]


def test_ui_3_what_the_page_ended_by_itself_has_not_finished(tab: Page, server: FakeBatches, page_errors: PageErrors) -> None:
    """One text has its end, one an error of its own, two have none when the stream breaks, by an error or without a word."""
    page_errors.expect(CUT)
    page = tab
    broken = event({"error": {"message": "out of albatrosses", "type": "server_error", "param": None, "code": None}})
    for last, phase in ((broken + DONE, "failed"), (b"", "cut")):

        def script(_: FakeBatches, body: dict[str, Any], last: bytes = last) -> Iterator[Step]:
            yield batch(body, "running") + update(0, "done", "a", 1) + update(1, "error", error={"message": "no"})
            yield server.stopped
            yield last

        server.reset()
        server.script = script
        begin(page, count=4)
        until(page, lambda: counts(page)["error"] == 1)
        server.stopped.set()
        ended(page, phase)
        assert page.locator(".batch-finished").text_content() == "2 of 4 finished"
        assert page.locator("#batch progress").evaluate("bar => [bar.value, bar.max]") == [2, 4]
        assert counts(page)["error"] == 3
        page.reload()
        ready(page)
        assert page.locator(".batch-finished").text_content() == "2 of 4 finished"


def test_ui_3_a_cut_after_the_last_text_says_that_none_was_cut(tab: Page, server: FakeBatches, page_errors: PageErrors) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        yield b"".join(update(number, "done", "x", 1) for number in range(4))
        yield server.stopped

    page_errors.expect(CUT)
    server.script = script
    begin(tab, count=4)
    until(tab, lambda: counts(tab)["done"] == 4)
    server.stopped.set()
    ended(tab, "cut")
    assert tab.locator(".batch-finished").text_content() == "4 of 4 finished"
    notice = tab.locator(".batch-results .notice").text_content() or ""
    assert "none was cut" in notice and "0 texts" not in notice


def test_ui_3_an_error_breaks_the_batch_off_in_words(tab: Page, server: FakeBatches) -> None:
    error = event({"error": {"message": "out of albatrosses", "type": "server_error", "param": None, "code": None}})
    server.script = lambda _, body: [update(0, "done", "a", 1) + update(1, "error", "", 0, error={"message": "too long"}) + error + DONE]
    page = tab
    begin(page, count=3)
    page.get_by_text("The server broke the batch off: out of albatrosses").wait_for()
    assert page.locator(".cell-error:visible").all_text_contents() == ["too long", "out of albatrosses"]


def test_ui_3_errors_of_items_are_no_success(tab: Page, server: FakeBatches) -> None:
    """Some: the batch is done, and says how many. All: it failed."""
    gone = {"error": {"message": "the model was unloaded", "type": "server_error", "param": None, "code": "model_unavailable"}}

    def script(failing: int) -> Script:
        def play(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
            yield batch(body, "running")
            yield b"".join(update(number, "error", **gone) if number < failing else update(number, "done", "x", 1) for number in range(5))
            yield batch(body, "done", counts={"done": 5 - failing, "aborted": 0, "error": failing}) + DONE

        return play

    page = tab
    server.script = script(2)
    begin(page, count=5)
    page.get_by_text("2 texts ended with an error. The first: the model was unloaded").wait_for()
    ended(page, "done")
    server.script = script(5)
    begin(page, count=5)
    ended(page, "failed")
    assert page.get_by_text("The server broke the batch off: the model was unloaded").is_visible()


def test_r32_a_call_that_the_browser_repeated_by_itself_is_told_as_that(tab: Page, server: FakeBatches, page_errors: PageErrors) -> None:
    page_errors.expect("409")
    error = {"message": "there has been a batch of this name", "type": "invalid_request_error", "param": "batch_id", "code": "batch_exists"}
    server.refusal = (409, {}, {"error": error})
    begin(tab)
    tab.get_by_text("the browser sent it again by itself").wait_for()


def test_a_refusal_is_told_and_leaves_the_last_batch(tab: Page, server: FakeBatches, page_errors: PageErrors) -> None:
    page_errors.expect("status of 4(29|00)")
    page = tab
    begin(page)
    ended(page, "done")
    server.refusal = (429, {"Retry-After": "7"}, {"error": {"message": "the queue is full", "param": None, "code": "queue_full"}})
    page.locator("#batch button.primary").click()
    page.get_by_text("The server refused the batch: the queue is full Try again in 7 s.").wait_for()
    assert counts(page)["done"] == 10 and len(server.bodies) == 2
    server.refusal = (400, {}, {"error": {"message": "temperature must be at most 3", "param": "temperature", "code": None}})
    page.locator("#batch button.primary").click()
    page.locator("#batch-temperature-problem", has_text="at most 3").wait_for()
    assert page.evaluate("document.activeElement.id") == "batch-temperature"


def test_the_form_says_what_is_wrong_and_sends_what_was_asked(tab: Page, server: FakeBatches) -> None:
    page = tab
    begin(page, prompt=" ")
    assert page.locator("#batch-prompt-problem").text_content() == "Enter a prompt."
    page.get_by_text("Sampling").click()
    wrong = {
        "max_tokens": "0",
        "temperature": "-1",
        "top_p": "-0.1",
        "top_k": "1.5",
        "presence_penalty": "101",
        "penalty_decay": "2",
        "count": "1001",
    }
    for name, value in wrong.items():
        page.locator(f"#batch-{name}").fill(value)
    begin(page, count=1001)
    for name in wrong:
        assert page.locator(f"#batch-{name}-problem").text_content(), name
        assert page.locator(f"#batch-{name}").get_attribute("aria-invalid") == "true"
    assert server.bodies == []
    right = {
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.5,
        "top_k": 40,
        "presence_penalty": -1,
        "frequency_penalty": 0,
        "penalty_decay": 0.99,
        "seed": 7,
    }
    for name, value in right.items():
        page.locator(f"#batch-{name}").fill(str(value))
    page.locator("#batch-stop").fill("\\n\\nUser:\n\nend")
    page.locator("#batch-ignore-eos").check()
    begin(page, count=2)
    ended(page, "done")
    (body,) = server.bodies
    assert body == {**right, "stop": ["\n\nUser:", "end"], "ignore_eos": True, "prompt": "Once", "count": 2, "batch_id": body["batch_id"]}
    assert page.locator(".batch-form [aria-invalid]").count() == 0


def test_prompts_come_from_lines_and_from_files(tab: Page, server: FakeBatches, tmp_path: Path) -> None:
    page = tab
    page.get_by_text("List of prompts").click()
    bad = tmp_path / "bad.jsonl"
    bad.write_text('"fine"\n{"prompt": 1}\n', encoding="utf-8")
    page.locator("#batch-file").set_input_files(bad)
    page.locator("#batch-list-problem", has_text="bad.jsonl, line 2").wait_for()
    good = tmp_path / "good.jsonl"
    good.write_text('"two\\nlines"\n{"prompt": "鹈鹕"}\n', encoding="utf-8")
    page.locator("#batch-file").set_input_files(good)
    page.get_by_text("Prompts, one a line (2)").wait_for()
    page.locator("#batch-list").press("Control+End")
    page.locator("#batch-list").press_sequentially("\n\nthird")
    page.locator("#batch button.primary").click()
    ended(page, "done")
    assert server.bodies[0]["prompt"] == ["two\nlines", "鹈鹕", "third"] and server.bodies[0]["count"] == 1
    assert page.locator(".cell-prompt:visible").all_text_contents() == ["two\nlines", "鹈鹕", "third"]
    page.locator("#batch-list").fill("line\n" * 501)
    page.locator("#batch-count").fill("2")
    page.locator("#batch button.primary").click()
    assert "501 prompts 2 times each" in (page.locator("#batch-list-problem").text_content() or "")
    assert len(server.bodies) == 1


def test_texts_are_copied_and_exported(tab: Page, server: FakeBatches) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        yield (
            batch(body, "running")
            + update(0, "done", "a\nb", 3, seed=5, finish_reason="stop")
            + update(2, "done", "鹈鹕", 2, seed=7, finish_reason="length")
        )
        yield update(1, "error", "x", 1, seed=6, error={"message": "no", "code": "c"}) + DONE

    server.script = script
    page = tab
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    begin(page, count=3)
    ended(page, "done")
    page.locator(".batch-filter label", has_text="done").click()
    page.get_by_role("button", name="Copy texts").click()
    page.get_by_text("Copied: 2").first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "a\nb\n\n---\n\n鹈鹕"
    page.locator(".batch-filter label", has_text="aborted").click()
    for name in ("Copy texts", "Export JSONL"):
        assert page.get_by_role("button", name=name).is_disabled(), "no text is in this state"
    page.locator(".batch-filter label", has_text="all").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export JSONL").click()
    assert waiting.value.suggested_filename.endswith(".jsonl")
    lines = [json.loads(line) for line in Path(waiting.value.path()).read_text(encoding="utf-8").split("\n") if line]
    assert lines[0] == {
        "id": 0,
        "prompt": "Once",
        "text": "a\nb",
        "status": "done",
        "finish_reason": "stop",
        "tokens": 3,
        "seed": 5,
        "error": None,
    }
    assert [line["status"] for line in lines] == ["done", "error", "done"] and lines[1]["error"] == {"message": "no", "code": "c"}


@pytest.mark.parametrize("width", [320, 360, 800, 1280])
def test_the_note_of_a_copy_moves_nothing(tab: Page, server: FakeBatches, width: int) -> None:
    page = tab
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    begin(page, count=200)
    ended(page, "done")
    tools, told = page.locator(".batch-bar button"), page.locator(".batch-told")
    places = """() => [...document.querySelectorAll(".batch-results > :not(.batch-told), .batch-bar *")].map((node) => {
      const { x, y, width, height } = node.getBoundingClientRect();
      return [node.className, x, y + scrollY, width, height];
    })"""
    try:
        page.set_viewport_size({"width": width, "height": 800})
        # Another language takes the note of the last copy away.
        for language in ("zh", "ja", "en"):
            page.select_option("#language", language)
            tools.first.scroll_into_view_if_needed()
            assert not told.is_visible()
            before = page.evaluate(places)
            tools.first.click()
            told.get_by_text("200").wait_for()
            assert page.evaluate(places) == before, language
            seen = told.evaluate(
                "node => { const { left, right, top, bottom } = node.getBoundingClientRect(); return [left, right, top, bottom]; }"
            )
            assert 0 <= seen[0] < seen[1] <= width and 0 <= seen[2] < seen[3] <= 800
    finally:
        page.set_viewport_size({"width": 1280, "height": 800})


def test_why_a_text_ended_is_said_in_each_language(tab: Page, server: FakeBatches) -> None:
    reasons = ["stop", "length", "abort", "weariness"]
    ends = [update(number, "done", "x", 1, finish_reason=reason) for number, reason in enumerate(reasons)]
    server.script = lambda _, body: [b"".join(ends) + DONE]
    page = tab
    begin(page, count=4)
    ended(page, "done")
    said = {
        "en": ["ended by itself or at a stop text", "ended at the token limit", "aborted", "ended: weariness"],
        "zh": ["自行结束，或遇到停止文本", "达到 token 上限", "已停止", "结束原因：weariness"],
        "ja": ["自然に、または停止文字列で終了", "トークン上限で終了", "停止", "終了理由：weariness"],
    }
    for number in range(4):
        page.locator(".cell").nth(number).click()
        facts = page.locator(".cell[data-open=pin] .cell-facts")
        for language in ("zh", "ja", "en"):
            page.select_option("#language", language)
            facts.get_by_text(said[language][number], exact=True).wait_for()
        page.keyboard.press("Escape")
        page.locator(".cell[data-open=pin]").wait_for(state="detached")


def test_markup_of_a_model_is_text(tab: Page, server: FakeBatches) -> None:
    markup = '<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>&lt;'

    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        for number, letter in enumerate(markup):
            yield update(0, "running", letter, number + 1)
        yield update(0, "done", "", len(markup)) + update(1, "error", "", 0, error={"message": markup}) + DONE

    server.script = script
    page = tab
    begin(page, prompt=markup, count=2)
    ended(page, "done")
    assert page.locator(".cell-text").first.text_content() == markup
    assert page.locator(".cell-error:visible").text_content() == markup
    assert page.locator("#batch img").count() == 0 and page.evaluate("window.broken") is None


def test_start_says_why_it_cannot(tab: Page, server: FakeBatches) -> None:
    for state, word in (("offline", "Load a model"), ("foreign", "no albatross strategy")):
        server.state = state
        # As if the page had been hidden: it asks at once.
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        tab.locator("#batch-reason", has_text=word).wait_for()
        assert tab.locator("#batch button.primary").is_disabled()
        link = tab.locator("#batch-reason a")
        for language, words in (("zh", "“模型”页"), ("ja", "「モデル」タブ"), ("en", "tab Model")):
            tab.select_option("#language", language)
            assert link.text_content() == words
    link.click()
    tab.locator("#model").wait_for()


WATCH = """() => {
  window.long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((entry) => Math.round(entry.duration)))).observe({ type: "longtask" });
}"""


def test_ui_1_a_thousand_items_at_full_speed_leave_the_page_smooth_and_small(tab: Page, server: FakeBatches) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        count = total(body)
        stream = [batch(body, "running")]
        stream += [update(number, "running", f"some words {piece} ", piece + 1) for piece in range(50) for number in range(count)]
        stream += [update(number, "done", "", 50, finish_reason="length") for number in range(count)] + [DONE]
        yield b"".join(stream)

    server.script, server.part = script, 1 << 16
    page = tab
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable")

    def heap() -> int:
        browser.send("HeapProfiler.collectGarbage")
        return next(int(each["value"]) for each in browser.send("Performance.getMetrics")["metrics"] if each["name"] == "JSHeapUsedSize")

    before = heap()
    page.evaluate(WATCH)
    begin(page, count=1000)
    page.get_by_text("1,000 of 1,000 finished").wait_for()
    assert max(page.evaluate("long"), default=0) <= 200
    assert page.evaluate("document.querySelectorAll('#batch *').length") < 700
    assert heap() - before < 12_000_000
    page.get_by_role("button", name="Clear").locator("visible=true").click()
    assert heap() - before < 3_000_000


def test_the_tab_has_no_serious_fault_for_those_who_cannot_see_it(tab: Page, server: FakeBatches) -> None:
    peers.need("axe_playwright_python")
    from axe_playwright_python.sync_playwright import Axe

    server.script = until_stopped
    tab.get_by_text("Sampling").click()
    begin(tab, count=40)
    until(tab, lambda: counts(tab)["done"] == 20)
    tab.locator(".cell").first.click()
    tab.locator(".cell[data-open=pin]").wait_for()
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        found = Axe().run(tab, context="#batch").response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found if each["impact"] in ("serious", "critical")] == []
    tab.emulate_media(color_scheme="light")


def test_it_fits_a_narrow_screen_in_each_language(pages: Pages, server: FakeBatches) -> None:
    page = pages.open(width=360, height=740)
    page.goto(server.page)
    ready(page)
    page.locator(".batch-sampling summary").click()
    begin(page, count=40)
    page.locator(".cell[data-state=done]").first.wait_for()
    assert page.evaluate("document.querySelector('[role=grid]').getAttribute('aria-colcount')") == "1"
    for language, word in (("zh", "完成"), ("ja", "完了"), ("en", "done")):
        page.select_option("#language", language)
        assert page.locator(".cell-state").first.text_content() == word
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        untold = "[...document.querySelectorAll('#batch *')].filter((node) => /^batch\\.[a-z]/.test(node.textContent)).length"
        assert page.evaluate(untold) == 0
