"""Short requests take turns, so that the page needs one connection beside a stream; a stop comes first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ui.browsing import until
from ui.fake_batches import FakeBatches, serving, until_stopped

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

STATUS = re.compile("/albatross/status$")
SCRIPT = """async () => {
  const { inTurn } = await import("/albatross/ui/turns.js");
  const seen = [];
  const work = (name) => async (signal) => {
    seen.push(`${name} begins`);
    await new Promise((resolve) => setTimeout(resolve, 5));
    seen.push(`${name} ends`);
    if (name === "bad") throw new Error("bad");
    return name;
  };
  %s
}"""


@pytest.fixture(scope="module")
def served() -> Iterator[FakeBatches]:
    with serving() as running:
        yield running


@pytest.fixture
def server(served: FakeBatches) -> FakeBatches:
    served.reset()
    return served


def run(page: Page, server: FakeBatches, script: str) -> Any:
    """What ``script`` returns; ``work(name)`` is a piece of work that tells ``seen`` when it begins and ends."""
    page.goto(f"{server.url}/albatross/ui/icon.svg")
    return page.evaluate(SCRIPT % script)


def test_one_at_a_time_the_urgent_first_and_a_failure_costs_the_others_nothing(page: Page, server: FakeBatches) -> None:
    found = run(
        page,
        server,
        """
        const names = ["first", "second", "bad", "stop", "stop again"];
        const calls = names.map((name) => inTurn(work(name), { urgent: name.startsWith("stop") }));
        const told = await Promise.allSettled(calls);
        return [seen, told.map((each) => each.value ?? each.reason.message)];
        """,
    )
    order = ["first", "stop", "stop again", "second", "bad"]
    assert found == [[f"{name} {what}" for name in order for what in ("begins", "ends")], ["first", "second", "bad", "stop", "stop again"]]


def test_who_gives_up_leaves_the_queue_or_ends_its_turn(page: Page, server: FakeBatches) -> None:
    found = run(
        page,
        server,
        """
        const [running, queued] = [new AbortController(), new AbortController()];
        const hold = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
        const calls = [inTurn(hold, { signal: running.signal }), inTurn(work("left"), { signal: queued.signal }), inTurn(work("next"))];
        queued.abort(new Error("left"));
        await new Promise((resolve) => setTimeout(resolve));
        running.abort(new Error("given up"));
        const gone = await inTurn(work("never"), { signal: AbortSignal.abort(new Error("too late")) }).catch((error) => error.message);
        const told = await Promise.allSettled(calls);
        return [seen, told.map((each) => each.value ?? each.reason.message), gone];
        """,
    )
    assert found == [["next begins", "next ends"], ["given up", "left", "next"], "too late"]


def test_a_question_that_is_never_answered_is_given_up(page: Page, server: FakeBatches) -> None:
    held: list[Route] = []
    page.clock.install()
    page.route(STATUS, lambda route: held.append(route))
    page.goto(server.page)
    until(page, lambda: held)
    page.clock.run_for(21_000)
    page.get_by_text("The server did not answer in time.").first.wait_for()
    page.unroute_all(behavior="ignoreErrors")


def test_ui_1_stop_waits_for_the_question_that_is_open_and_for_no_other(page: Page, server: FakeBatches) -> None:
    server.script = until_stopped
    held: list[Route] = []
    asked: list[str] = []
    page.goto(server.page)
    page.locator("#batch button.primary:enabled").wait_for()
    page.fill("#batch-prompt", "Once")
    page.click("#batch button.primary")
    page.locator(".cell[data-state=done]").first.wait_for()
    page.route(STATUS, lambda route: held.append(route))
    until(page, lambda: held)
    page.on("request", lambda request: asked.append(request.method))
    # Another question, which has to wait, and then Stop.
    page.evaluate("import('/albatross/ui/api.js').then(({ getJson }) => { getJson('/status'); })")
    page.get_by_role("button", name="Stop", exact=True).locator("visible=true").click()
    page.get_by_text("stopping").wait_for()
    assert asked == [] == server.stops
    held.pop().continue_()
    page.unroute(STATUS)
    page.locator(".batch-head p", has_text="stopped").wait_for()
    assert asked[:2] == ["DELETE", "GET"] and len(server.stops) == 1
