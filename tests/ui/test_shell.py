"""The page's frame: tabs, languages, the API key, the state of server and model, calls below a prefix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")

from axe_playwright_python.sync_playwright import Axe
from host.live import LiveHost
from playwright.sync_api import expect
from ui.browsing import until

from albatross_plugin import hooks
from host_stub.guard import Rules

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route
    from ui.browsing import PageErrors, Pages

FOLDER = resources.files("albatross_plugin.serving").joinpath("ui")
TABS = ["model", "status", "chat", "batch"]
API = re.compile(r"/(status|switch-model)$")
# Words that are the same in other languages: names, units, places for values.
SAME = re.compile(r"(?:\{\w+\}|[^A-Za-z]|\b(?:API|JSON|JSONL|Top P|Top K|Token|Tokens|tokens?/s|tok|s|B|max_tokens|ms)\b)*")


@pytest.fixture(scope="module")
def keyed_host() -> Iterator[LiveHost]:
    with LiveHost(("albatross", hooks), rules=Rules.of(api_key="secret")) as running:
        yield running


def words(page: Page) -> dict[str, dict[str, str]]:
    return page.evaluate("async () => (await import('/albatross/ui/words.js')).words")


def selected(page: Page) -> str:
    shown = [tab for tab in TABS if page.get_attribute(f"#{tab}", "hidden") is None]
    assert [tab for tab in TABS if page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"] == shown
    return "".join(shown)


def test_every_text_is_there_in_all_languages(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    table = words(page)
    assert len(table) > 100
    for key, texts in table.items():
        assert set(texts) == {"en", "zh", "ja"} and all(text.strip() == text != "" for text in texts.values()), key
        if not SAME.fullmatch(texts["en"]):
            assert texts["en"] not in (texts["zh"], texts["ja"]), f"{key} is English in another language"
        places = {language: sorted(re.findall(r"\{\w+\}", text)) for language, text in texts.items()}
        assert places["zh"] == places["en"] == places["ja"], key
        assert not re.search(r"[\u3040-\u30ff]", texts["zh"]), f"{key} has kana in Chinese"


def test_a_thing_has_one_name_in_all_tabs(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    for key, texts in words(page).items():
        assert not re.search("词元|令牌|线程", texts["zh"]), key
        assert not re.search("ストラテジー|要求(?!さ)|待ち行列|tok", texts["ja"].replace("max_tokens", "")), key


def test_every_key_that_the_page_uses_has_words(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    table = words(page)
    for name in sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith((".js", ".html"))):
        content = FOLDER.joinpath(name).read_text(encoding="utf-8")
        used = re.findall(r"""\bt\("([\w.-]+)"|data-t(?:-\w+)?"?[=:] ?"([\w.-]+)\"""", content)
        assert [key for pair in used for key in pair if key and key not in table] == [], name


@pytest.mark.parametrize(
    ("locale", "lang", "tab"), [("en-GB", "en", "Model"), ("zh-TW", "zh-CN", "模型"), ("ja-JP", "ja", "モデル"), ("fr-FR", "en", "Model")]
)
def test_the_language_is_the_browsers_or_else_english(pages: Pages, ui_url: str, locale: str, lang: str, tab: str) -> None:
    page = pages.open(locale)
    page.goto(ui_url)
    expect(page.locator("#tab-model")).to_have_text(tab)
    assert page.get_attribute("html", "lang") == lang


def test_another_language_counts_at_once_and_at_the_next_visit(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    page.fill("#model-path", "kept.pth")
    page.select_option("#device-mode", label="Other strategy")
    page.select_option("#language", "zh")
    expect(page.locator("#model-state")).to_have_text("未加载模型")
    assert page.get_attribute("html", "lang") == "zh-CN"
    assert page.inner_text("#load-button") == "加载" and page.get_attribute("[role=tablist]", "aria-label") == "视图"
    assert page.inner_text("#device-mode option:checked") == "其他策略" and page.input_value("#model-path") == "kept.pth"
    page.reload()
    expect(page.locator("#tab-batch")).to_have_text("批量生成")
    assert page.input_value("#language") == "zh"


def test_tabs_follow_keys_and_the_address(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    expect(page.locator("#load-button")).to_be_visible()
    assert selected(page) == "model"
    page.focus("#tab-model")
    for key, wanted in [("ArrowRight", "status"), ("End", "batch"), ("ArrowRight", "model"), ("ArrowLeft", "batch"), ("Home", "model")]:
        page.keyboard.press(key)
        assert selected(page) == wanted
        expect(page.locator(f"#tab-{wanted}")).to_be_focused()
        assert [page.locator(f"#tab-{tab}").evaluate("node => node.tabIndex") for tab in TABS] == [
            0 if tab == wanted else -1 for tab in TABS
        ]
        assert page.url.endswith(f"#{wanted}")
    page.click("#tab-chat")
    page.reload()
    expect(page.locator("#tab-chat")).to_have_attribute("aria-selected", "true")
    page.evaluate("location.hash = '#batch'")
    expect(page.locator("#tab-batch")).to_have_attribute("aria-selected", "true")
    page.goto(ui_url + "#nowhere")
    expect(page.locator("#tab-model")).to_have_attribute("aria-selected", "true")
    assert selected(page) == "model"


def test_each_tab_keeps_its_own_place(pages: Pages, ui_url: str) -> None:
    page = pages.open(width=360, height=740)
    page.goto(ui_url + "#batch")
    page.locator("#batch .batch-sampling summary").click()

    def scroll(to: int) -> None:
        page.evaluate("(to) => new Promise((done) => { addEventListener('scroll', done, { once: true }); scrollTo(0, to); })", to)

    def place(tab: str) -> int:
        page.click(f"#tab-{tab}")
        return int(page.evaluate("scrollY"))

    scroll(500)
    assert place("model") == 0, "opened for the first time"
    scroll(60)
    assert place("batch") == 500 and place("batch") == 500 and place("model") == 60 and place("status") == 0
    # By a link and by the keyboard it is no other.
    page.evaluate("location.hash = '#batch'")
    expect(page.locator("#tab-batch")).to_have_attribute("aria-selected", "true")
    assert page.evaluate("scrollY") == 500
    page.focus("#tab-batch")
    page.keyboard.press("Home")
    assert page.evaluate("scrollY") == 60
    page.keyboard.press("End")
    assert page.evaluate("scrollY") == 500


def test_the_keyboard_reaches_everything_in_order(page: Page, ui_url: str) -> None:
    page.goto(ui_url)
    expect(page.locator("#device-mode option")).to_have_count(3)
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    assert reached == ["language", "key-button", "tab-model", "model-path", "device-mode", "summary", "load-button"]


def test_an_api_key_is_asked_for_in_words_and_kept_for_this_visit(page: Page, page_errors: PageErrors, keyed_host: LiveHost) -> None:
    page_errors.expect("401")
    page.clock.install()
    page.goto(f"{keyed_host.url}/albatross/ui")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("The server asks for an API key.")
    expect(page.locator("#connection")).to_have_text("The server asks for an API key.")
    expect(page.locator("#model-state")).to_have_text("key needed")
    expect(page.locator("#key")).to_be_focused()
    page.fill("#key", "schlüssel")
    page.keyboard.press("Enter")
    expect(page.locator("#key-problem")).to_contain_text("only letters, digits and signs of ASCII")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("The server refused this API key.")
    page.fill("#key", " secret ")
    page.click("dialog button.primary")
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    expect(page.locator("#connection")).to_be_hidden()
    expect(page.locator("#device-mode option")).to_have_count(3)
    assert page.locator("dialog").count() == 0
    assert page.evaluate("[JSON.stringify(localStorage).includes('secret'), sessionStorage.length]") == [False, 1]
    page.reload()
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    page.click("#key-button")
    page.click("dialog >> text=Forget the key")
    expect(dialog).to_contain_text("The server asks for an API key.")
    # Who closes it is not asked again and again.
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    page.clock.run_for(600_000)
    assert page.locator("dialog").count() == 0


def test_the_key_dialog_says_a_thing_once_and_keeps_its_buttons_together(page: Page, page_errors: PageErrors, keyed_host: LiveHost) -> None:
    page_errors.expect("401")
    page.goto(f"{keyed_host.url}/albatross/ui")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    message = page.get_by_text("The server refused this API key.").locator("visible=true")
    expect(page.locator("dialog .notice")).to_have_text("The server refused this API key.")
    expect(page.locator("#connection")).to_have_text("The server refused this API key.")
    expect(message).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#connection")).to_be_visible()
    expect(message).to_have_count(1)
    boxes = "nodes => nodes.map((node) => node.getBoundingClientRect()).map(({ x, y, width }) => [x, y, width])"
    for language in ("zh", "ja", "en"):
        page.select_option("#language", language)
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 740})
            page.click("#key-button")
            expect(page.locator("dialog .actions button")).to_have_count(3)
            found = page.locator("dialog .actions button").evaluate_all(boxes)
            lines, lefts, widths = (len({box[each] for box in found}) for each in (1, 0, 2))
            assert (lines == 1) if width == 1280 else ((lines, lefts, widths) == (3, 1, 1)), (language, width)
            page.keyboard.press("Escape")
            expect(page.locator("dialog")).to_have_count(0)


def test_a_server_that_is_gone_is_told_and_found_again(page: Page, page_errors: PageErrors, ui_url: str) -> None:
    page_errors.expect("/status")
    page.goto(ui_url)
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    page.route(API, lambda route: route.abort("connectionrefused"))
    expect(page.locator("#connection")).to_have_text("The server cannot be reached. Is it still running?")
    expect(page.locator("#model-state")).to_have_text("no connection")
    expect(page.locator("#model-facts")).to_contain_text("no connection")
    expect(page.locator("#batch-reason")).to_have_text("The server cannot be reached.")
    expect(page.locator("#model-now")).to_have_attribute("data-state", "lost")
    page.select_option("#language", "ja")
    expect(page.locator("#connection")).to_contain_text("サーバーに接続できません")
    page.unroute(API)
    expect(page.locator("#connection")).to_be_hidden()


ODD = [
    (
        500,
        "application/json",
        '{"error": {"message": "<b>broken</b>", "code": "c", "param": "p"}, "detail": "x"}',
        "<b>broken</b>",
        "c",
        None,
    ),
    (422, "application/json", '{"detail": [{"loc": ["body", "model"], "msg": "Field required"}]}', "model: Field required", None, None),
    (404, "application/json", '{"detail": "Not Found"}', "Not Found", None, None),
    (422, "application/json", '{"detail": [{"loc": 5, "msg": "no"}, {"loc": "x", "msg": {"toString": 1}}, null, 7]}', "no", None, None),
    (429, "application/json", '{"error": "later"}', "later", None, 7),
    (502, "text/html", "<h1>Bad Gateway</h1>", "The server answered with status 502.", None, None),
    (500, "application/json", "[null]", "The server answered with status 500.", None, None),
    (200, "text/html", "<p>sign in", "The server's answer is not JSON.", "garbled", None),
    (
        302,
        "text/html",
        "",
        "Something between this page and the server asks for a sign-in or points elsewhere. Reload the page.",
        "redirected",
        None,
    ),
]


def test_odd_answers_are_told_in_words(page: Page, page_errors: PageErrors, ui_url: str) -> None:
    page_errors.expect("/odd/")

    def answer(route: Route) -> None:
        status, content_type, body, *_ = ODD[int(route.request.url.rsplit("/", 1)[1])]
        more = {302: {"location": "/elsewhere"}, 429: {"retry-after": "7"}}.get(status, {})
        route.fulfill(status=status, headers={"content-type": content_type, **more}, body=body)

    page.route("**/odd/*", answer)
    page.goto(ui_url)
    found = page.evaluate(
        """
        async (count) => {
          const { getJson, ApiError } = await import("/albatross/ui/api.js");
          const ask = (index) => getJson(`/odd/${index}`).catch((error) => error);
          const errors = await Promise.all([...Array(count).keys()].map(ask));
          return errors.map((error) => [error instanceof ApiError, error.status, error.message, error.code, error.retryAfter]);
        }
        """,
        len(ODD),
    )
    wanted = [[True, 0 if status == 302 else status, text, code, after] for status, _, _, text, code, after in ODD]
    assert found == wanted


def test_names_from_the_server_are_text(page: Page, ui_url: str) -> None:
    name = "<img src=x onerror=\"document.title='ran'\">"
    state = {"model": name, "state": "ready", "engine": None, "batches": {"running": 0, "items": 0}, "version": name}
    mode = {"id": "x", "labels": {"en": name}, "strategy": name, "fields": [{"key": name, "type": "integer", "default": 1}]}
    page.route(re.compile("/albatross/status$"), lambda route: route.fulfill(json=state))
    page.route(
        re.compile(r"\d/status$"),
        lambda route: route.fulfill(json={"status": 3, "device_modes": [mode, None, {"id": 1}], "device_name": name}),
    )
    page.goto(ui_url)
    expect(page.locator("#model-name")).to_have_text(name)
    page.select_option("#device-mode", "x")
    expect(page.locator("label", has_text=name)).to_be_visible()
    assert page.locator("#model img").count() == 0 and page.title() == "Albatross"


def test_below_a_prefix_every_call_keeps_it(page: Page, ui_host: LiveHost) -> None:
    asked = []

    def forward(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(response=route.fetch(url=route.request.url.replace("/some/prefix", "")))

    page.route("**/some/prefix/**", forward)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{ui_host.url}/some/prefix/albatross/ui")
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    expect(page.locator("#device-mode option")).to_have_count(3)
    assert len(asked) > 10 and all(url.startswith(f"{ui_host.url}/some/prefix/") for url in asked)


def test_one_status_question_at_a_time_and_none_while_the_page_is_hidden(page: Page, ui_url: str) -> None:
    held: list[Route] = []
    page.clock.install()
    page.route(re.compile("/albatross/status$"), lambda route: held.append(route))
    page.goto(ui_url)
    until(page, lambda: held)
    page.clock.run_for(5000)
    assert len(held) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    held.pop().continue_()
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    page.clock.run_for(60_000)
    assert held == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    until(page, lambda: held)
    page.unroute_all(behavior="ignoreErrors")


def test_a_callback_that_fails_ends_neither_the_questions_nor_the_others(page: Page, page_errors: PageErrors, ui_url: str) -> None:
    page_errors.expect("not today")
    module = "export function mount(section, app) { app.onStatus(() => { throw new Error('not today'); }); }"
    page.route("**/ui/load.js", lambda route: route.fulfill(body=module, content_type="text/javascript"))
    page.goto(ui_url)
    expect(page.locator("#model-state")).to_have_text("no model loaded")
    with page.expect_response(re.compile("/albatross/status$")):
        pass


def test_one_broken_tab_leaves_the_others(page: Page, page_errors: PageErrors, ui_url: str) -> None:
    page_errors.expect("no chart today")
    module = "export function mount() { throw new Error('no chart today'); }"
    page.route("**/ui/status.js", lambda route: route.fulfill(body=module, content_type="text/javascript"))
    page.goto(ui_url + "#status")
    expect(page.locator("#status [role=alert]")).to_have_text("This view could not be built: no chart today")
    page.click("#tab-model")
    expect(page.locator("#device-mode option")).to_have_count(3)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_model_tab_is_accessible_and_fits_narrow_screens(pages: Pages, ui_url: str, dark: bool) -> None:
    page = pages.open(width=360, height=740, dark=dark)
    page.goto(ui_url)
    page.select_option("#device-mode", "CUDA High Performance")
    page.fill("#field-batch", "0")
    page.click("#load-button")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
    page.click("#key-button")
    assert Axe().run(page).response["violations"] == []
