"""The tab Chat: every answer reaches an end of its own, keeps its text, and is asked for once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cases.scripts import tokens, world, write_script
from host.live import LiveHost
from ui.browsing import Forwarder, PageErrors, Pages, until
from ui.fake_api import DONE, PAGE, FakeApi, Reply, event, fake_api, refusal, said

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

INPUT = "#chat-input"
ANSWER = ".chat-model"
SEND = ".chat-buttons button:first-child"
MARKUP = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def api() -> Iterator[FakeApi]:
    with fake_api() as running:
        yield running


@pytest.fixture(scope="module")
def opened(browser: Browser, api: FakeApi) -> Iterator[Page]:
    pages = Pages(browser, PageErrors())
    page = pages.open()
    page.goto(f"{api.url}{PAGE}#chat")
    page.locator(INPUT).wait_for()
    yield page
    pages.close()


@pytest.fixture
def chat(opened: Page, api: FakeApi, page_errors: PageErrors) -> Iterator[Page]:
    """The tab, and nothing said so far. It is one page for all: opening one takes longer than most tests."""
    page_errors.watch(opened)
    api.bodies.clear()
    api.replies.clear()
    yield opened
    opened.get_by_role("button", name="Clear").evaluate("node => node.click()")
    opened.fill(INPUT, "")
    assert page_errors.unexpected() == []


def ask(page: Page, question: str, *, wait: bool = True) -> None:
    page.fill(INPUT, question)
    page.press(INPUT, "Enter")
    if wait:
        ended(page)


def ended(page: Page) -> str:
    """How the last answer ended."""
    until(page, lambda: page.locator(ANSWER).last.get_attribute("aria-busy") == "false")
    return str(page.locator(ANSWER).last.get_attribute("data-end"))


def text(page: Page) -> str:
    """The last answer, as it stands in the page."""
    return str(page.locator(f"{ANSWER} .chat-text").last.evaluate("node => node.textContent"))


def note(page: Page) -> str:
    return page.locator(f"{ANSWER} .chat-note").last.inner_text()


def contents(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


# --- with the stub host -------------------------------------------------------------------------------------------------


@pytest.fixture
def markup_url(ui_load: Callable[..., LiveHost], ui_models: Path) -> str:
    pieces = [world().token_bytes[token].decode() for token in world().encode(MARKUP)]
    return ui_load(write_script(ui_models / "markup.pth", *tokens(*pieces))).url + PAGE


def test_markup_of_a_model_is_text_and_lives_through_a_reload(pages: Pages, markup_url: str, forwarder: Forwarder) -> None:
    page = pages.open(dark=True)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(f"{forwarder.url}{PAGE}#chat")
    page.locator(INPUT).wait_for()
    forwarder.reset()
    ask(page, f"say {MARKUP}")
    assert ended(page) == "done" and text(page) == MARKUP
    # One connection for the answer, and one for the status beside it, for which the browser may take another one that lies idle.
    assert forwarder.peak <= 3
    page.reload()
    assert ended(page) == "done" and text(page) == MARKUP
    assert page.locator(".chat-user .chat-text").inner_text() == f"say {MARKUP}"
    assert page.locator("#chat img").count() == 0 and dialogs == []


def test_the_host_gets_the_settings_and_tells_the_token_limit(page: Page, markup_url: str) -> None:
    page.goto(f"{markup_url}#chat")
    page.click(".chat-settings summary")
    page.fill("#chat-max_tokens", "3")
    ask(page, "hi")
    assert ended(page) == "length" and text(page) == "<img src"
    assert "max_tokens" in note(page)


def test_without_a_model_the_chat_says_where_to_get_one(page: Page, ui_host: LiveHost, page_errors: PageErrors) -> None:
    page_errors.expect("the server responded with a status of 400")
    assert ui_host.switch("").status_code == 200
    page.goto(f"{ui_host.url}{PAGE}#chat")
    page.locator(".chat-empty", has_text="No model is loaded").wait_for()
    ask(page, "hi")
    assert ended(page) == "error" and "Load one in the tab Model." in note(page)
    page.locator(".chat-note a", has_text="tab Model").click()
    page.locator("#model").wait_for()
    page.click("#tab-chat")
    page.get_by_role("button", name="Clear").click()
    link = page.locator(".chat-empty a")
    node = link.element_handle()
    # The next answer of the status leaves it as it is.
    for _ in range(2):
        with page.expect_response("**/albatross/status"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert node is not None and node.evaluate("node => node.isConnected")
    link.click()
    page.locator("#model").wait_for()


# --- streams that break -------------------------------------------------------------------------------------------------


def test_ui_3_a_stream_without_its_end_is_cut_and_keeps_its_text(chat: Page, api: FakeApi, page_errors: PageErrors) -> None:
    page_errors.expect("ERR_INCOMPLETE_CHUNKED_ENCODING")
    for whole in (True, False):
        reply = Reply([said("one "), said("two", "stop"), "data: [DO"], held=2, whole=whole)
        api.replies.append(reply)
        ask(chat, "hi", wait=False)
        # A browser drops what it has not handed over when a connection breaks.
        until(chat, lambda: text(chat) == "one two")
        reply.gate.set()
        assert ended(chat) == "cut" and text(chat) == "one two" and "Cut" in note(chat)
    assert len(api.bodies) == 2, "nothing is sent a second time"


def test_a_letter_with_thousands_of_marks_is_shown_with_a_few(chat: Page, api: FakeApi) -> None:
    """A browser takes many seconds to draw it whole, while nothing else on the page works."""
    marks = "\u0301" * 400
    api.replies.append(Reply([said("e" + marks), *[said(marks) for _ in range(20)], said(marks + " ña\u0303", "stop"), DONE]))
    ask(chat, "hi")
    assert ended(chat) == "done" and text(chat) == "e" + "\u0301" * 16 + " ña\u0303"
    assert len(chat.evaluate("Object.entries(sessionStorage).find(([name]) => name.startsWith('albatross.chat'))[1]")) > 8000, (
        "nothing of it is lost"
    )


def test_ui_3_an_error_in_a_stream_is_told_beside_the_text(chat: Page, api: FakeApi) -> None:
    api.replies.append(Reply([said("one "), event({"error": {"message": "out of <b>albatrosses</b>", "code": None}})]))
    ask(chat, "hi")
    assert ended(chat) == "error" and text(chat) == "one "
    assert note(chat) == "Failed: out of <b>albatrosses</b>"
    assert len(api.bodies) == 1


def test_ui_3_one_bad_line_is_skipped_and_told_and_characters_may_be_split(chat: Page, api: FakeApi) -> None:
    words = "Wörter 世界 🐦"
    data = said(words).encode()
    # Byte by byte, which cuts characters and line ends alike; then a line that is no JSON, and the rest with other line ends.
    parts = [data[at : at + 1] for at in range(len(data))]
    rest = [": alive\n\n", "data: {no JSON\r\n\r\n", "data: 5\n\n", said(" end").replace("\r\n", "\r"), 'data: {"choices": []}\n\n', DONE]
    api.replies.append(Reply([b"\xef\xbb\xbf", *parts, *rest]))
    ask(chat, "hi")
    assert ended(chat) == "done" and text(chat) == f"{words} end"
    assert note(chat).endswith("could not be read: 2.")


def test_ui_3_a_server_that_does_not_stream_answers_as_a_whole(chat: Page, api: FakeApi) -> None:
    answer = {"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]}
    api.replies.append(Reply([json.dumps(answer)], headers={"Content-Type": "application/json"}))
    ask(chat, "hi")
    assert ended(chat) == "done" and text(chat) == "all at once"


def test_ui_3_stop_ends_the_request_and_keeps_the_text(chat: Page, api: FakeApi) -> None:
    api.replies.append(Reply([said(" one "), said("two "), said("never"), DONE], held=2))
    api.left.clear()
    ask(chat, "hi", wait=False)
    until(chat, lambda: text(chat) == "one two ")
    assert chat.locator(SEND).inner_text() == "Stop"
    # Neither Enter nor the second click of a pair sends or stops anything.
    chat.fill(INPUT, "next")
    chat.press(INPUT, "Enter")
    chat.locator(SEND).evaluate("node => node.dispatchEvent(new MouseEvent('click', { detail: 2 }))")
    assert chat.locator(ANSWER).get_attribute("data-end") == "running"
    chat.click(SEND)
    assert ended(chat) == "stopped" and text(chat) == "one two " and note(chat) == "Stopped."
    until(chat, api.left.is_set)
    assert len(api.bodies) == 1 and chat.input_value(INPUT) == "next"
    # What was said until then belongs to the conversation.
    api.replies.append(Reply([said("three"), DONE]))
    chat.press(INPUT, "Enter")
    assert ended(chat) == "done"
    assert contents(api.bodies[1]) == [("user", "hi"), ("assistant", "one two "), ("user", "next")]


def test_ui_3_a_refused_message_is_shown_left_out_and_sent_again_only_by_retry(chat: Page, api: FakeApi, page_errors: PageErrors) -> None:
    page_errors.expect("the server responded with a status of")
    api.replies.append(refusal(429, "the queue is full", **{"Retry-After": "7"}))
    ask(chat, "first")
    assert ended(chat) == "error" and "the queue is full" in note(chat) and "Try again in 7 s." in note(chat)
    api.replies.append(Reply([said("fine"), DONE]))
    ask(chat, "second")
    assert contents(api.bodies[1]) == [("user", "second")]
    api.replies.append(refusal(500, "a step failed"))
    ask(chat, "third")
    api.replies.append(Reply([said("well"), DONE]))
    assert chat.get_by_role("button", name="Retry").count() == 1, "the last answer's alone"
    chat.get_by_role("button", name="Retry").click()
    assert ended(chat) == "done" and text(chat) == "well"
    assert contents(api.bodies[2]) == contents(api.bodies[3]) == [("user", "second"), ("assistant", "fine"), ("user", "third")]
    assert len(api.bodies) == 4 and chat.locator(ANSWER).count() == 3


# --- writing and reading ------------------------------------------------------------------------------------------------


def test_settings_that_are_empty_are_left_out_and_wrong_ones_send_nothing(chat: Page, api: FakeApi) -> None:
    api.replies += [Reply([DONE]), Reply([said("x"), DONE])]
    ask(chat, "hi")
    assert api.bodies[0] == {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    assert ended(chat) == "done" and "said nothing" in note(chat)
    chat.click(".chat-settings summary")
    chat.fill("#chat-temperature", "9")
    chat.fill(INPUT, "hi")
    chat.press(INPUT, "Enter")
    assert chat.locator("#chat-temperature-problem").inner_text() == "Enter a number from 0 to 3, or leave it empty."
    assert chat.evaluate("document.activeElement.id") == "chat-temperature" and chat.input_value(INPUT) == "hi"
    values = {"temperature": 0.5, "top_p": 1, "max_tokens": 20, "presence_penalty": -1, "frequency_penalty": 0}
    for name, value in values.items():
        chat.fill(f"#chat-{name}", str(value))
    chat.fill("#chat-system", "be brief")
    ask(chat, "hi")
    assert api.bodies[1] == {
        **values,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stream": True,
    }
    chat.reload()
    assert chat.input_value("#chat-top_p") == "1" and chat.input_value("#chat-system") == "be brief"
    chat.evaluate("sessionStorage.clear()")
    chat.reload()
    assert chat.input_value("#chat-top_p") == ""


def test_enter_that_ends_a_composition_sends_nothing(chat: Page, api: FakeApi) -> None:
    api.replies.append(Reply([said("好"), DONE]))
    chat.focus(INPUT)
    keyboard = chat.context.new_cdp_session(chat)
    keyboard.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    chat.keyboard.press("Enter")
    assert api.bodies == [] and chat.locator(ANSWER).count() == 0
    keyboard.send("Input.insertText", {"text": "你好"})
    chat.keyboard.press("Shift+Enter")
    chat.keyboard.insert_text("世界")
    assert api.bodies == []
    chat.keyboard.press("Enter")
    assert ended(chat) == "done"
    assert contents(api.bodies[0]) == [("user", "你好\n世界")]


def test_a_selection_and_a_place_further_up_survive_the_stream(chat: Page, api: FakeApi) -> None:
    first, second = (Reply([said("word\n" * 200), said("end"), DONE], held=1) for _ in range(2))
    api.replies += [first, second]
    end = """() => {
        const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".chat-log");
        return clientHeight > 0 && scrollHeight - scrollTop - clientHeight < 2;
    }"""
    ask(chat, "hi", wait=False)
    until(chat, lambda: len(text(chat)) == 1000)
    assert chat.evaluate(end), "a reader at the end stays there"
    chat.evaluate("""() => {
        document.querySelector(".chat-log").scrollTop = 40;
        const node = document.querySelector(".chat-model .chat-text").firstChild;
        getSelection().setBaseAndExtent(node, 5, node, 9);
    }""")
    chat.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    first.gate.set()
    assert ended(chat) == "done" and text(chat).endswith("end")
    assert chat.evaluate("[String(getSelection()), document.querySelector('.chat-log').scrollTop]") == ["word", 40]
    ask(chat, "hi", wait=False)
    until(chat, lambda: len(text(chat)) == 1000)
    # What comes while another tab is shown is there at the return.
    chat.click("#tab-status")
    second.gate.set()
    ended(chat)
    chat.click("#tab-chat")
    until(chat, lambda: chat.evaluate(end))
    chat.click(".chat-settings summary")
    until(chat, lambda: chat.evaluate(end))
    chat.click(".chat-settings summary")


def test_an_answer_is_copied_cleared_and_kept_over_a_reload(chat: Page, api: FakeApi) -> None:
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    api.replies += [Reply([said("a <b> c\n"), DONE]), Reply([said("part"), said("never"), DONE], held=1)]
    ask(chat, "hi")
    chat.get_by_role("button", name="Copy").click()
    chat.get_by_role("button", name="Copied").wait_for()
    assert chat.evaluate("navigator.clipboard.readText()") == "a <b> c\n"
    ask(chat, "again", wait=False)
    until(chat, lambda: text(chat) == "part")
    chat.reload()
    assert ended(chat) == "cut" and text(chat) == "part", "left while it ran"
    assert chat.locator(ANSWER).count() == 2 and len(api.bodies) == 2
    chat.get_by_role("button", name="Clear").click()
    assert chat.locator(ANSWER).count() == 0
    chat.evaluate("sessionStorage.setItem('albatross.chat:', '[{\"question\": 1}, 5, null]')")
    chat.reload()
    assert chat.locator(".chat-empty").is_visible(), "nonsense in the store is nothing"


def test_a_server_that_cannot_be_reached_is_told_in_the_language_spoken(chat: Page, page_errors: PageErrors) -> None:
    page_errors.expect("chat/completions|ERR_FAILED")
    chat.route("**/v1/chat/completions", lambda route: route.abort())
    ask(chat, "hi")
    assert ended(chat) == "error" and "The server cannot be reached." in note(chat)
    chat.select_option("#language", "zh")
    assert "无法连接到服务器" in note(chat)
    chat.select_option("#language", "en")
    chat.unroute("**/v1/chat/completions")


def test_clearing_ends_what_runs_and_languages_change_in_place(chat: Page, api: FakeApi) -> None:
    api.replies += [Reply([said("one"), said("two"), DONE], held=1), Reply([said("new"), event({"error": {"message": "gone"}})])]
    ask(chat, "hi", wait=False)
    until(chat, lambda: text(chat) == "one")
    chat.get_by_role("button", name="Clear").click()
    ask(chat, "other")
    assert text(chat) == "new" and chat.locator(ANSWER).count() == 1
    for code, words in (("zh", "失败：gone"), ("ja", "失敗：gone"), ("en", "Failed: gone")):
        chat.select_option("#language", code)
        assert note(chat) == words
