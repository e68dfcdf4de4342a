"""The tab Model: what is asked for, what is sent, and how a load is told while it runs and when it is over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")
pytest.importorskip("torch")

import tiny
from playwright.sync_api import expect
from ui import stepped_load
from ui.browsing import until

from albatross_plugin.bench import chosen_executor
from host_stub.state import ModelStatus

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import Page, Request
    from ui.browsing import PageErrors

MODE = "CUDA High Performance"
STRATEGY = "albatross device=cpu batch=4"
STEPPED = chosen_executor.strategy(stepped_load.NAME)
STATUS_ONLY = re.compile(r"/albatross/status$")


@pytest.fixture(scope="module")
def model(ui_models: Path) -> Path:
    path = ui_models / "hello-world.pth"
    tiny.write(path, tiny.script_checkpoint([33, 34, 35]))
    return path


@pytest.fixture
def tab(page: Page, ui_host: LiveHost, ui_url: str) -> Iterator[Page]:
    page.goto(ui_url)
    expect(page.locator("#device-mode option")).to_have_count(3)
    yield page
    ui_host.switch("")


def switches(page: Page) -> list[Request]:
    """The requests to ``/switch-model`` from now on."""
    found: list[Request] = []
    page.on("request", lambda request: found.append(request) if request.url.endswith("/switch-model") else None)
    return found


def choose_other(page: Page, strategy: str) -> None:
    page.select_option("#device-mode", label="Other strategy")
    page.fill("#strategy-other", strategy)


def start(page: Page, path: object, strategy: str = STRATEGY) -> None:
    page.fill("#model-path", str(path))
    choose_other(page, strategy)
    page.press("#strategy-other", "Enter")


def test_enter_loads_once_and_the_outcome_and_the_header_name_the_model(tab: Page, model: Path) -> None:
    sent = switches(tab)
    start(tab, model)
    expect(tab.locator("#load-outcome")).to_have_text(re.compile(r"Loaded hello-world in (\d\.\d|\d+) s\."))
    expect(tab.locator("#model-now")).to_have_text("hello-worldready")
    expect(tab.locator("#model-facts")).to_contain_text("hello-world")
    assert [request.post_data_json for request in sent] == [
        {"model": str(model), "strategy": STRATEGY, "tokenizer": "", "customCuda": False, "deploy": False}
    ]
    tab.click("text=Generate a batch")
    expect(tab.locator("#tab-batch")).to_have_attribute("aria-selected", "true")
    tab.click("#tab-model")
    tab.click("#unload-button")
    expect(tab.locator("#load-outcome")).to_have_text("The model is unloaded.")
    expect(tab.locator("#model-now")).to_have_text("no model loaded")
    assert sent[1].post_data_json["model"] == "" and len(sent) == 2
    expect(tab.locator("#unload-button")).to_be_disabled()


def test_a_load_shows_how_far_it_is_and_is_not_sent_again(tab: Page, model: Path) -> None:
    sent = switches(tab)
    start(tab, model, STEPPED)
    progress = tab.locator("#load-progress")
    expect(progress).to_contain_text("Preparing")
    assert tab.get_attribute("#load-progress progress", "value") is None
    stepped_load.tell(1_000_000_000)
    expect(progress).to_contain_text("Reading weights")
    expect(progress).to_contain_text("1.00 / 4.00 GB")
    assert float(tab.get_attribute("#load-progress progress", "value") or 0) == 0.25
    expect(progress).to_contain_text(re.compile(r"\d:\d\d"))
    expect(tab.locator("#model-state")).to_have_text("loading")
    # Neither the button nor Enter begins a second one.
    expect(tab.locator("#load-button")).to_be_disabled()
    tab.press("#model-path", "Enter")
    stepped_load.tell(stepped_load.TOTAL)
    expect(progress).to_contain_text("Starting the engine")
    stepped_load.tell("go")
    expect(tab.locator("#load-outcome")).to_contain_text("Loaded hello-world")
    expect(progress).to_be_hidden()
    expect(tab.locator("#load-button")).to_be_enabled()
    assert len(sent) == 1


def test_a_load_that_somebody_else_started_is_shown_and_refuses_another(tab: Page, ui_host: LiveHost, model: Path) -> None:
    sent = switches(tab)
    ui_host.state.status = ModelStatus.Loading
    try:
        tab.reload()
        expect(tab.locator("#load-progress")).to_be_visible()
        expect(tab.locator("#model-state")).to_have_text("loading")
        expect(tab.locator("#load-button")).to_be_disabled()
        start(tab, model)
    finally:
        ui_host.state.status = ModelStatus.Offline
    expect(tab.locator("#load-progress")).to_be_hidden()
    expect(tab.locator("#model-state")).to_have_text("no model loaded")
    expect(tab.locator("#load-outcome")).to_contain_text("The load has ended without a model")
    expect(tab.locator("#load-button")).to_be_enabled()
    assert sent == []


def test_a_load_that_began_before_the_status_told_refuses_another(
    tab: Page, page_errors: PageErrors, ui_host: LiveHost, model: Path
) -> None:
    page_errors.expect("switch-model")
    # The engine has no part in it, and the host is asked anew after the refusal.
    ui_host.state.status = ModelStatus.Loading
    try:
        start(tab, model)
        expect(tab.locator("#load-outcome")).to_have_text("A load is running already. Wait for its end, then try again.")
        expect(tab.locator("#load-progress")).to_be_visible()
    finally:
        ui_host.state.status = ModelStatus.Offline
    expect(tab.locator("#load-outcome")).to_contain_text("The load has ended without a model")


def test_a_reload_of_the_page_leaves_a_load_its_outcome(tab: Page, model: Path) -> None:
    start(tab, model, STEPPED)
    stepped_load.tell(1_000_000_000)
    expect(tab.locator("#load-progress")).to_contain_text("1.00 / 4.00 GB")
    sent = switches(tab)
    tab.reload()
    expect(tab.locator("#load-progress")).to_contain_text("1.00 / 4.00 GB")
    expect(tab.locator("#load-button")).to_be_disabled()
    stepped_load.tell("go")
    outcome = tab.locator("#load-outcome")
    expect(outcome).to_contain_text("Loaded hello-world.")
    assert outcome.locator("a").all_text_contents() == ["Open the chat", "Generate a batch"]
    expect(tab.locator("#load-progress")).to_be_hidden()
    expect(tab.locator("#load-button")).to_be_enabled()
    assert sent == []


def test_a_model_without_albatross_is_offered_no_batch(tab: Page) -> None:
    foreign = {"model": "hello", "state": "foreign", "engine": None}
    tab.route(STATUS_ONLY, lambda route: route.fulfill(json=foreign))
    tab.route("**/switch-model", lambda route: route.fulfill(json={}))
    start(tab, "hello.pth", "cpu fp32")
    expect(tab.locator("#load-outcome")).to_contain_text("Loaded hello in")
    assert tab.locator("#load-outcome a").all_text_contents() == ["Open the chat"]


def test_a_load_that_fails_shows_the_servers_reason_as_text(tab: Page, page_errors: PageErrors, model: Path) -> None:
    page_errors.expect("switch-model")
    reason = "<img src=x onerror=alert(1)> is no weight"
    stepped_load.tell(reason)
    start(tab, model, STEPPED)
    outcome = tab.locator("#load-outcome")
    expect(outcome).to_contain_text("The model was not loaded.")
    expect(outcome).to_contain_text(reason)
    assert outcome.get_attribute("role") == "alert" and tab.locator("main img").count() == 0
    expect(tab.locator("#load-progress")).to_be_hidden()
    # The next one is told alone.
    start(tab, "not-there.pth")
    expect(outcome).to_contain_text("model file not found: not-there.pth")
    expect(outcome).not_to_contain_text("onerror")


def test_deploy_mode_is_said_in_words(tab: Page, page_errors: PageErrors, ui_host: LiveHost, model: Path) -> None:
    page_errors.expect("switch-model")
    ui_host.state.deploy = True
    try:
        start(tab, model)
        expect(tab.locator("#load-outcome")).to_contain_text("deploy mode")
        tab.reload()
        expect(tab.locator("#deploy-note")).to_be_visible()
        expect(tab.locator("#load-button")).to_be_disabled()
    finally:
        ui_host.state.deploy = False


def test_ui_1_a_connection_that_breaks_is_told_and_the_load_is_not_sent_again(tab: Page, page_errors: PageErrors, model: Path) -> None:
    page_errors.expect("switch-model")
    tab.route("**/switch-model", lambda route: route.abort("connectionreset"))
    sent = switches(tab)
    start(tab, model)
    expect(tab.locator("#load-outcome")).to_contain_text("The connection broke before the outcome was known.")
    expect(tab.locator("#load-button")).to_be_enabled()
    assert len(sent) == 1


def test_what_is_missing_is_said_beside_the_field_and_nothing_is_sent(tab: Page) -> None:
    sent = switches(tab)

    def problem(field: str) -> str:
        assert f"{field}-problem" in str(tab.get_attribute(f"#{field}", "aria-describedby")).split()
        return tab.inner_text(f"#{field}-problem")

    tab.click("#load-button")
    assert problem("model-path") == "Enter the path of a model file." and problem("device-mode") == "Choose a device mode."
    expect(tab.locator("#model-path")).to_be_focused()
    assert tab.get_attribute("#model-path", "aria-invalid") == "true" == tab.get_attribute("#device-mode", "aria-invalid")
    tab.fill("#model-path", "a.pth")
    assert problem("model-path") == "" and tab.get_attribute("#model-path", "aria-invalid") is None
    tab.select_option("#device-mode", MODE)
    assert problem("device-mode") == ""
    for text in ("0", "4097", "", "1.5", "-1"):
        tab.fill("#field-batch", text)
        tab.click("#load-button")
        assert problem("field-batch") == "Enter a whole number from 1 to 4096.", text
    expect(tab.locator("#field-batch")).to_be_focused()
    tab.fill("#field-batch", "4096")
    assert problem("field-batch") == ""
    tab.select_option("#device-mode", label="Other strategy")
    tab.click("#load-button")
    assert problem("strategy-other") == "Enter a strategy." and sent == []


def test_a_gguf_needs_no_device_mode(tab: Page, page_errors: PageErrors) -> None:
    page_errors.expect("switch-model")
    tab.fill("#model-path", "not-there.GGUF")
    expect(tab.locator("#gguf-note")).to_be_visible()
    with tab.expect_request("**/switch-model") as asked:
        tab.press("#model-path", "Enter")
    assert asked.value.post_data_json["strategy"] == ""
    expect(tab.locator("#load-outcome")).to_contain_text("not-there.GGUF")


def test_paths_are_remembered_the_last_one_first(tab: Page, page_errors: PageErrors) -> None:
    page_errors.expect("switch-model")
    for name in ("a.pth", "b.pth", "a.pth"):
        start(tab, name)
        expect(tab.locator("#load-outcome")).to_contain_text(name)
    tab.reload()
    assert tab.input_value("#model-path") == "a.pth"
    assert tab.eval_on_selector_all("#model-history option", "nodes => nodes.map((node) => node.value)") == ["a.pth", "b.pth"]
    # What another version, or a user, left there does no harm.
    tab.evaluate("localStorage.setItem('albatross.models', '{\"not\": [1]}')")
    tab.reload()
    expect(tab.locator("#device-mode option")).to_have_count(3)
    assert tab.input_value("#model-path") == ""


def test_the_fields_replace_or_append_their_part_of_the_strategy(tab: Page) -> None:
    found = tab.evaluate(
        """
        async () => {
          const { compose } = await import("/albatross/ui/device_modes.js");
          const { clock } = await import("/albatross/ui/load_progress.js");
          const { bytesOf, duration } = await import("/albatross/ui/numbers.js");
          return [
            compose("albatross workers=1 batch=32", { workers: "2", batch: "64" }),
            compose(" x  Batch=1 ", { batch: "8", device: "cpu" }),
            compose("x subbatch=1", { batch: "8" }),
            bytesOf(0, 0), bytesOf(999, 1000), bytesOf(123456, 1000000), bytesOf(1.5e9, 14.5e9), clock(59999), clock(3723000),
            duration(0.14), duration(9.96), duration(59.4), duration(75),
          ];
        }
        """
    )
    assert found[:3] == ["albatross workers=2 batch=64", "x batch=8 device=cpu", "x subbatch=1 batch=8"]
    assert found[3:] == ["0 / 0 B", "1 / 1 kB", "0.1 / 1.0 MB", "1.50 / 14.50 GB", "0:59", "1:02:03", "0.1 s", "10 s", "59 s", "1 min 15 s"]


def test_the_engines_end_is_shown_with_its_reason(tab: Page, ui_host: LiveHost) -> None:
    down = {
        "model": "m",
        "state": "down",
        "engine": {"phase": "down", "error": "the device was lost"},
        "batches": {"running": 0, "items": 0},
    }
    tab.route(STATUS_ONLY, lambda route: route.fulfill(json=down))
    expect(tab.locator("#model-state")).to_have_text("failed")
    expect(tab.locator("section.card .notice.bad")).to_have_text("the device was lost")
    until(tab, lambda: tab.is_enabled("#unload-button"))
