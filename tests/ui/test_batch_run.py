"""One batch as the page reads it: sent once, every item with an end, whatever becomes of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ui.browsing import PageErrors, until
from ui.fake_batches import DONE, FakeBatches, Step, batch, event, serving, text_of, until_stopped, update

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = """async ({call, grace}) => {
  const { BatchRun } = await import("./ui/batch_run.js");
  window.run = new BatchRun(call, { grace, onChange: () => (window.changes = (window.changes ?? 0) + 1) });
  return run.start();
}"""
END = """async () => {
  await run.whenEnded;
  const { phase, counts, tokens, tokensRunning, malformed, failure } = run;
  const items = run.items.map(({ id, status, text, error, seed, tokens, finishReason }) => ({ id, status, text, error, seed, tokens, finishReason }));
  return { phase, counts, tokens, tokensRunning, malformed, failure: failure && { ...failure, message: failure.message }, items };
}"""


@pytest.fixture(scope="module")
def served() -> Iterator[FakeBatches]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def blank(browser: Any, served: FakeBatches) -> Iterator[Page]:
    """One page for all of them: nothing here looks at what is shown."""
    page = browser.new_page()
    page.goto(served.page)
    yield page
    page.close()


@pytest.fixture
def server(served: FakeBatches) -> FakeBatches:
    served.reset()
    return served


def start(page: Page, count: int = 4, grace: int = 10_000, **call: Any) -> bool:
    value = {"prompts": ["p"], "count": count, "options": {"max_tokens": 3}, **call}
    return bool(page.evaluate(START, {"call": value, "grace": grace}))


def run(page: Page, count: int = 4, **call: Any) -> Any:
    assert start(page, count, **call)
    return page.evaluate(END)


def texts(ended: Any) -> list[str]:
    return [item["text"] for item in ended["items"]]


@pytest.mark.parametrize(("part", "ending"), [(None, "\n"), (3, "\r\n"), (7, "\r")])
def test_ui_1_a_batch_is_read_whole_however_its_bytes_are_cut(blank: Page, server: FakeBatches, part: int | None, ending: str) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        for data in (batch(body, "running"), *(update(number, "done", f"鹈鹕 {number} 🦜", 5, seed=number) for number in range(4))):
            yield data.replace(b"\n", ending.encode())
        yield DONE.replace(b"\n", ending.encode())

    server.script, server.part = script, part
    ended = run(blank)
    assert ended["phase"] == "done" and ended["malformed"] == 0
    assert texts(ended) == [f"鹈鹕 {number} 🦜" for number in range(4)]
    assert [item["seed"] for item in ended["items"]] == [0, 1, 2, 3]
    (body,) = server.bodies
    assert body == {"prompt": "p", "count": 4, "max_tokens": 3, "batch_id": body["batch_id"]}


def test_ui_1_many_updates_are_told_once_a_frame(blank: Page, server: FakeBatches) -> None:
    server.pieces = 40
    blank.evaluate("window.changes = 0; window.frames = 0; const count = () => { frames += 1; requestAnimationFrame(count); }; count()")
    ended = run(blank, 300, prompts=["a", "b"], options={"seed": 5})
    assert texts(ended) == [text_of(number, 40) for number in range(600)]
    assert ended["tokens"] == 600 * 40 and ended["tokensRunning"] == 0
    assert server.bodies[0]["prompt"] == ["a", "b"]
    changes, frames = blank.evaluate("[changes, frames]")
    assert 0 < changes <= frames + 1


def test_ui_3_a_stream_that_ends_early_is_cut_and_texts_stay(blank: Page, server: FakeBatches) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        yield batch(body, "running") + update(0, "done", "whole", 2) + update(1, "running", "half", 1)
        # An event without its empty line is none.
        yield update(1, "running", " more", 2)[:-1]
        # A browser drops what it has not handed over when the connection breaks.
        yield server.stopped

    server.script = script
    assert start(blank)
    until(blank, lambda: blank.evaluate("run.items[1].length") == 4)
    server.stopped.set()
    ended = blank.evaluate(END)
    assert ended["phase"] == "cut" and ended["counts"] == {"pending": 0, "running": 0, "done": 1, "aborted": 0, "error": 3}
    assert texts(ended) == ["whole", "half", "", ""]
    assert [item["error"] and item["error"]["code"] for item in ended["items"]] == [None, "cut", "cut", "cut"]
    assert len(server.bodies) == 1, "nothing is sent a second time"


def test_ui_3_an_end_that_leaves_items_out_is_a_cut(blank: Page, server: FakeBatches) -> None:
    server.script = lambda _, body: [batch(body, "running") + update(2, "done", "x", 1) + DONE]
    ended = run(blank)
    assert ended["phase"] == "cut" and ended["counts"]["error"] == 3


@pytest.mark.parametrize("more", [{}, {"id": None}])
def test_ui_3_an_error_of_the_stream_ends_what_has_no_end(blank: Page, server: FakeBatches, more: dict[str, Any]) -> None:
    error = event({**more, "error": {"message": "out of albatrosses", "type": "server_error", "param": None, "code": "engine"}})
    server.script = lambda _, body: [update(0, "done", "a", 1) + update(1, "running", "b", 1) + error, DONE]
    ended = run(blank)
    assert ended["phase"] == "failed" and ended["failure"]["message"] == "out of albatrosses"
    assert [item["status"] for item in ended["items"]] == ["done", "error", "error", "error"]
    assert ended["items"][1]["text"] == "b" and ended["items"][3]["error"] == {"message": "out of albatrosses", "code": "engine"}


BAD = [
    b"data: {no JSON\n\n",
    b"data: 7\n\n",
    b"data: null\n\n",
    update(99, "running"),
    update(0, "jumping"),
    update(-1, "done"),
    event({"id": "0", "status": "done"}),
]
BAD += [event({"id": 0, "status": "running", "delta": 5}), event({"id": 0, "status": "running", "delta": "x", "tokens": "many"})]
BAD += [b'data: {"id": 0, "status": "running", "tokens": %s}\n\n' % tokens for tokens in (b'"5"', b"null", b"[5]", b"1.5", b"1e999", b"-1")]
# Texts cannot be made of such an object.
ODD = {"seed": {"toString": 1, "valueOf": 1}, "finish_reason": {"toString": 1, "valueOf": 1}}


def test_ui_3_bad_events_are_counted_and_the_good_ones_count(blank: Page, server: FakeBatches) -> None:
    def script(_: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
        yield batch(body, "running")
        for bad in BAD:
            yield bad + event({"id": 0, "status": "running", "delta": ".", "tokens": 1, **ODD})
        yield update(0, "error", "", 9, error={"message": "too long", "code": "context_length_exceeded"})
        # What comes after an end is nothing.
        yield update(0, "running", "late", 99) + update(0, "done", "late", 99)
        yield b"".join(update(number, "done", "ok", 1) for number in range(1, 4)) + DONE

    server.script = script
    ended = run(blank)
    assert ended["malformed"] == len(BAD) and ended["phase"] == "done"
    assert ended["items"][0] == {
        "id": 0, "status": "error", "text": "." * len(BAD), "tokens": 9, "finishReason": None, "seed": None,
        "error": {"message": "too long", "code": "context_length_exceeded"},
    }  # fmt: skip
    assert texts(ended)[1:] == ["ok"] * 3


def test_ui_3_a_refused_batch_does_not_run_and_is_not_sent_again(blank: Page, server: FakeBatches) -> None:
    server.refusal = (429, {"Retry-After": "7"}, {"error": {"message": "the queue is full", "param": None, "code": "queue_full"}})
    assert not start(blank)
    phase, message, again = blank.evaluate("[run.phase, run.failure.message, run.failure.retryAfter]")
    assert (phase, message, again) == ("refused", "the queue is full", 7)
    assert len(server.bodies) == 1 and blank.evaluate("run.counts.pending") == 4


def test_ui_3_stop_is_sent_once_and_the_stream_tells_the_ends(blank: Page, server: FakeBatches) -> None:
    server.script = until_stopped
    assert start(blank, 10)
    until(blank, lambda: blank.evaluate("run.counts.done") == 5)
    blank.evaluate("run.stop(); run.stop(); 0")
    ended = blank.evaluate(END)
    assert ended["phase"] == "aborted" and ended["counts"] == {"pending": 0, "running": 0, "done": 5, "aborted": 5, "error": 0}
    assert texts(ended) == ["half done"] * 5 + ["half "] * 5
    assert server.stops == [server.bodies[0]["batch_id"]]
    assert ended["items"][9]["finishReason"] == "abort"


def test_ui_3_a_stop_that_comes_too_late_changes_nothing(blank: Page, server: FakeBatches) -> None:
    server.script = lambda server, body: [server.stopped, b"".join(update(number, "done", "x", 1) for number in range(4)) + DONE]
    assert start(blank)
    blank.evaluate("run.stop()")
    assert blank.evaluate(END)["phase"] == "done"


@pytest.mark.parametrize("deletes", [True, False])
def test_ui_3_stop_leaves_a_stream_that_does_not_end(blank: Page, server: FakeBatches, deletes: bool) -> None:
    """A server that takes the stop and goes on all the same, and one that does not know the batch."""
    server.deletes = deletes
    server.script = lambda server, body: [b"".join(update(number, "running", "x", 1) for number in range(4)), server.closing]
    assert start(blank, grace=100)
    until(blank, lambda: blank.evaluate("run.counts.running") == 4)
    blank.evaluate("run.stop()")
    ended = blank.evaluate(END)
    assert ended["phase"] == "aborted" and ended["counts"]["aborted"] == 4 and texts(ended) == ["x"] * 4
    assert server.left.wait(5), "the server sees that the reader has left"
    assert len(server.stops) == 1


def test_ui_3_stop_before_the_answer_leaves_at_once(blank: Page, server: FakeBatches) -> None:
    server.answer_delay = True
    blank.evaluate(
        "call => { window.starting = (" + START + ")(call); }", {"call": {"prompts": ["p"], "count": 4, "options": {}}, "grace": 10_000}
    )
    assert server.begun.wait(5)
    assert blank.evaluate("run.stop().then(() => starting)") is False
    assert blank.evaluate("run.phase") == "aborted" and server.stops == [] and len(server.bodies) == 1


def test_ui_3_a_saved_batch_comes_back_with_its_open_items_cut(blank: Page, server: FakeBatches) -> None:
    server.script = until_stopped
    assert start(blank, 4)
    until(blank, lambda: blank.evaluate("run.counts.done") == 2)
    restored = blank.evaluate(
        """async () => {
          const { BatchRun } = await import("./ui/batch_run.js");
          const again = BatchRun.restored(JSON.parse(JSON.stringify(run.saved())));
          run.stop();
          return [again.phase, again.counts, again.items.map((item) => item.text), again.items.map((item) => item.shown), again.call.options];
        }"""
    )
    assert restored[0] == "reloaded" and restored[1]["error"] == 2
    assert restored[2:] == [["half done"] * 2 + ["half "] * 2, ["done", "done", "cut", "cut"], {"max_tokens": 3}]


def test_prompts_of_lines_and_files(blank: Page, page_errors: PageErrors) -> None:
    said = blank.evaluate(
        r"""async () => {
          const { promptsOf, linesOfFile, escaped, unescaped } = await import("./ui/batch_prompts.js");
          const bad = (name, text) => { try { return linesOfFile(name, text); } catch (error) { return [error.line, error.reason]; } };
          const any = "a\\nb\n\t\\ c\\";
          return [
            promptsOf("one\\ntwo\r\n\n  \nC:\\\\new \\d"),
            linesOfFile("a.txt", "\uFEFFx\r\ny\n"),
            promptsOf(linesOfFile("a.jsonl", '"two\\nlines"\n\n{"prompt": "back\\\\slash"}\r\n').join("\n")),
            bad("a.jsonl", '"a"\n{"prompt": 5}'), bad("a.JSONL", '"a"\n\nnot json'), bad("a.jsonl", '["a"]'), bad("a.jsonl", '{"prompt": " "}'),
            unescaped(escaped(any)) === any && !/[\n\t]/.test(escaped(any)),
          ];
        }"""
    )
    assert said == [
        ["one\ntwo", "C:\\new \\d"],
        ["x", "y"],
        ["two\nlines", "back\\slash"],
        [2, "shape"],
        [3, "json"],
        [1, "shape"],
        [1, "shape"],
        True,
    ]
