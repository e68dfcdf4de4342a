"""Reading of event streams on the page: the same events however the bytes are cut, and nothing of an event that was cut off."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright")

from ui.browsing import PageErrors, Pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Gives each list of byte parts to the reader; what it yields is compared with the first list's events.
READ = """
async (cases) => {
  const { events } = await import("/albatross/ui/sse.js");
  const read = async (parts) => {
    const stream = new ReadableStream({
      start(controller) {
        for (const part of parts) controller.enqueue(new Uint8Array(part));
        controller.close();
      },
    });
    const found = [];
    for await (const data of events(new Response(stream))) found.push(data);
    return found;
  };
  const all = [];
  for (const parts of cases) all.push(await read(parts));
  return all;
}
"""
TEXT = ': hello\n\ndata: {"delta":"汉字 é 😀"}\n\nevent: x\nid: 1\ndata:first\ndata:  second\ndata\n\nretry: 5\n\ndata: [DONE]\n\n'
EVENTS = ['{"delta":"汉字 é 😀"}', "first\n second\n", "[DONE]"]


@pytest.fixture(scope="module")
def reader(browser: Browser, ui_url: str) -> Iterator[Page]:
    """One page for all tests of this file, which only calls the module."""
    errors = PageErrors()
    pages = Pages(browser, errors)
    page = pages.open()
    page.goto(ui_url)
    yield page
    pages.close()
    assert errors.unexpected() == []


def read(page: Page, *cases: list[bytes]) -> list[list[str]]:
    return page.evaluate(READ, [[list(part) for part in case] for case in cases])


def split(data: bytes, *places: int) -> list[bytes]:
    marks = [0, *places, len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_ui_3_events_are_the_same_wherever_the_bytes_are_cut(reader: Page, end: str) -> None:
    data = TEXT.replace("\n", end).encode()
    cases = [split(data, place) for place in range(len(data) + 1)] + [[bytes([byte]) for byte in data]]
    found = read(reader, *cases)
    assert [index for index, events in enumerate(found) if events != EVENTS] == []


def test_ui_3_an_empty_part_between_the_halves_of_a_line_end_changes_nothing(reader: Page) -> None:
    assert read(reader, [b"data: a\r", b"", b"\n\r", b"", b"\ndata: b\r\n", b"\r\n"]) == [["a", "b"]]


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_ui_3_an_event_without_its_empty_line_is_not_given(reader: Page, end: str) -> None:
    assert read(reader, [b"data: whole\n\n", f"data: cut{end}".encode()]) == [["whole"]]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: \xef\xbb\xbfa\n\n", ["\ufeffa"]),
        (b"data:\n\n", [""]),
        (b"data\n\n", [""]),
        (b"data: \n\n", [""]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a: b\n\n", ["a: b"]),
        (b"datax: a\nDATA: b\n data: c\n\n", []),
        (b": data: a\n:\n\n", []),
        (b"\n\n\n\r\r\n", []),
        (b"data: a\n\r\ndata: b\r\r\n\n", ["a", "b"]),
        (b"data: \xe6\xb1\xff\n\n", ["\ufffd\ufffd"]),
        ("data: a\u2028b\x0bc\x85d\n\n".encode(), ["a\u2028b\x0bc\x85d"]),
        (b"", []),
    ],
)
def test_ui_3_events_are_read_as_the_standard_says(reader: Page, data: bytes, events: list[str]) -> None:
    cases = [split(data, place) for place in range(len(data) + 1)]
    assert read(reader, *cases) == [events] * len(cases)


def test_ui_3_a_long_event_in_many_parts_is_whole(reader: Page) -> None:
    (found,) = reader.evaluate(
        """
        async () => {
          const { events } = await import("/albatross/ui/sse.js");
          const bytes = new TextEncoder().encode(`data: ${"x".repeat(2000000)}\\n\\n`);
          const stream = new ReadableStream({
            start(controller) {
              for (let at = 0; at < bytes.length; at += 100) controller.enqueue(bytes.subarray(at, at + 100));
              controller.close();
            },
          });
          const found = [];
          for await (const data of events(new Response(stream))) found.push(data.length);
          return found;
        }
        """
    )
    assert found == 2_000_000


def test_ui_3_who_stops_listening_ends_the_stream_and_a_failure_is_passed_on(reader: Page) -> None:
    assert reader.evaluate(
        """
        async () => {
          const { events } = await import("/albatross/ui/sse.js");
          let cancelled = false;
          const endless = new ReadableStream({
            pull: (controller) => controller.enqueue(new TextEncoder().encode("data: a\\n\\n")),
            cancel: () => { cancelled = true; },
          });
          for await (const data of events(new Response(endless))) if (data === "a") break;
          const found = [];
          let parts = 0;
          const broken = new ReadableStream({
            pull: (controller) => {
              if (parts++ === 0) controller.enqueue(new TextEncoder().encode("data: b\\n\\ndata: c\\n"));
              else controller.error(new TypeError("broken"));
            },
          }, { highWaterMark: 0 });
          try {
            for await (const data of events(new Response(broken))) found.push(data);
          } catch (error) {
            found.push(error.message);
          }
          for await (const data of events(new Response(null))) found.push(data);
          return { cancelled, found };
        }
        """
    ) == {"cancelled": True, "found": ["b", "broken"]}
