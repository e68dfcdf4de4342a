"""The grid of texts: few nodes for many items, cells that open under the pointer or the focus, and nothing that moves under a reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ui.browsing import PageErrors, Pages, until
from ui.fake_batches import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# A grid of its own on the page, 900 x 600: three columns of 300 pixels less the scroll bar's share.
MAKE = """async ({count, prompts}) => {
  const { Grid } = await import("./ui/grid.js");
  const { Item } = await import("./ui/batch_item.js");
  window.items = Array.from({ length: count }, (_, id) => new Item(id, "prompt"));
  for (const item of items) { item.append(`text ${item.id} ` + "word ".repeat(60)); item.status = "done"; item.tokens = 9; item.version = 1; }
  window.copied = [];
  window.grid?.node.remove();
  window.grid = new Grid({ onCopy: (item) => copied.push(item.id) });
  Object.assign(grid.node.style, { position: "fixed", inset: "0", width: "900px", height: "600px", zIndex: "99", background: "Canvas", margin: "0" });
  document.body.append(grid.node);
  const seen = new Promise((resolve) => new ResizeObserver(resolve).observe(grid.node));
  await seen;
  grid.setItems(items, { prompts });
  await new Promise(requestAnimationFrame);
}"""
# What is on the screen: the cells by item, the open one, the scroll.
SHOWN = """() => {
  const edge = grid.node.getBoundingClientRect();
  const cells = [...grid.canvas.querySelectorAll(".cell:not([hidden])")].map((cell) => {
    const { left, top, right, bottom } = cell.getBoundingClientRect();
    return [Number(cell.querySelector(".cell-id").textContent.slice(1)), [left, top, right, bottom]];
  });
  return { cells: Object.fromEntries(cells), open: grid.open && [grid.open.item.id, grid.open.by], scroll: grid.node.scrollTop };
}"""


@pytest.fixture(scope="module")
def site(browser: Browser) -> Iterator[Page]:
    """One page for all of them; each makes its own grid."""
    errors = PageErrors()
    with serving() as server:
        opener = Pages(browser, errors)
        page = opener.open()
        page.goto(server.page)
        page.wait_for_selector(".batch-form")
        yield page
        opener.close()
    assert errors.unexpected() == []


def make(page: Page, count: int = 1000, prompts: bool = False) -> None:
    page.mouse.move(1200, 790)
    page.evaluate(MAKE, {"count": count, "prompts": prompts})


def shown(page: Page) -> Any:
    return page.evaluate(SHOWN)


def settled(page: Page) -> Any:
    """What is shown once nothing moves any more."""
    before = None
    while (now := shown(page)) != before:
        before = now
        page.wait_for_timeout(50)
    return now


def opened(page: Page) -> Any:
    return page.evaluate("grid.open && [grid.open.item.id, grid.open.by]")


def hover(page: Page, x: float, y: float) -> None:
    """To a place by way of another one: a first move tells nothing."""
    page.mouse.move(x + 2, y)
    page.mouse.move(x, y)


WALK = """async ({columns, rows, view, seed}) => {
  const { Layout, openUnder, close } = await import("./ui/grid_layout.js");
  let state = seed;
  const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
  let layout = Layout.even(rows, columns, 900, 132);
  let scroll = 0;
  const wrong = [];
  for (let step = 0; step < 400; step += 1) {
    if (random() < 0.2) scroll = Math.round(random() * Math.max(0, layout.total - view));
    const x = random() * 900;
    const y = random() * Math.min(view, layout.total - scroll);
    const at = { row: layout.rowAt(scroll + y), column: layout.columnAt(x), y, view };
    const next = random() < 0.1 ? close(layout, scroll, at) : openUnder(layout, scroll, at);
    const opens = next.layout.extras.size > 0;
    for (const part of [0.2, 0.7, 1]) {
      const between = layout.towards(next.layout, part);
      if (Math.abs(between.width - 900) > 1e-6) wrong.push(["width", step, between.width]);
      const top = layout.top(at.row) - scroll;
      const goal = next.layout.top(at.row) - next.scroll;
      const now = Math.round(between.top(at.row) - (top + (goal - top) * part));
      if (opens && now < -1) wrong.push(["above", step, now]);
      const over = [between.rowAt(now + y), between.columnAt(x)];
      if (opens && (over[0] !== at.row || over[1] !== at.column) && y - top > 1) wrong.push(["left", step, part, at, over]);
    }
    ({ layout, scroll } = next);
    const bottom = layout.top(at.row) + layout.heightOf(at.row) - scroll;
    if (opens && scroll > 0 && view > 340 && bottom > view + 1) wrong.push(["below", step, bottom]);
    if (scroll < 0) wrong.push(["scroll", step, scroll]);
  }
  return wrong;
}"""


def test_the_pointer_stays_in_the_cell_that_opens_on_any_way_through_the_grid(site: Page) -> None:
    for columns, rows, view in ((1, 1000, 420), (3, 334, 600), (5, 200, 600), (2, 3, 900), (4, 10, 1200)):
        for seed in (1, 2):
            assert site.evaluate(WALK, {"columns": columns, "rows": rows, "view": view, "seed": seed}) == []


def test_few_nodes_hold_a_thousand_items_and_all_can_be_reached(site: Page) -> None:
    make(site)
    nodes = "grid.node.querySelectorAll('*').length"
    first = site.evaluate(nodes)
    seen = site.evaluate(
        """async () => {
          const seen = new Set();
          for (let end = false; !end; grid.node.scrollTop += 590) {
            end = grid.node.scrollTop + grid.node.clientHeight >= grid.node.scrollHeight - 1;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            for (const name of grid.canvas.querySelectorAll(".cell:not([hidden]) .cell-id")) seen.add(Number(name.textContent.slice(1)));
          }
          return [...seen];
        }"""
    )
    assert set(seen) == set(range(1000))
    assert first < 500 and site.evaluate(nodes) <= first * 1.5
    order = site.evaluate("[...grid.canvas.querySelectorAll('.grid-row')].map((row) => Number(row.getAttribute('aria-rowindex')))")
    assert order == sorted(order) and order[-1] == 334
    assert site.evaluate("[grid.canvas.getAttribute('aria-rowcount'), grid.canvas.getAttribute('aria-colcount')]") == ["334", "3"]


def test_hovering_opens_a_cell_and_its_neighbours_and_the_pointer_stays_inside(site: Page) -> None:
    make(site)
    even = shown(site)["cells"]
    hover(site, 450, 200)
    until(site, lambda: opened(site) == [4, "hover"])
    now = settled(site)
    left, top, right, bottom = now["cells"]["4"]
    assert left <= 450 <= right and top <= 200 <= bottom
    width, height = even["4"][2] - even["4"][0], even["4"][3] - even["4"][1]
    assert right - left > 1.6 * width and bottom - top > 2.3 * height
    assert abs(top - even["4"][1]) <= 1 and bottom <= 600, "it grows downwards"
    row = [now["cells"][str(number)] for number in (3, 4, 5)]
    assert row[0][0] == pytest.approx(even["3"][0], abs=1) and row[2][2] == pytest.approx(even["5"][2], abs=1)
    assert now["cells"]["7"][1] > even["7"][1] + height and now["cells"]["7"][3] - now["cells"]["7"][1] > 1.3 * height
    # Into the neighbour below: that one opens where it is, and again the pointer stays inside.
    for x, y in ((460, 480), (800, 480), (210, 590), (210, 20)):
        hover(site, x, y)
        site.wait_for_timeout(140)
        number, by = settled(site)["open"]
        left, top, right, bottom = shown(site)["cells"][str(number)]
        assert by == "hover" and left - 5 <= x <= right + 5 and top - 5 <= y <= bottom + 5
    site.mouse.move(1200, 700)
    until(site, lambda: opened(site) is None)
    assert settled(site)["cells"] == even, "all is as before"


def test_a_pointer_that_only_passes_opens_nothing(site: Page) -> None:
    make(site)
    site.evaluate(
        "window.shows = []; const show = grid.show.bind(grid); grid.show = (item, ...more) => { shows.push(item.id); show(item, ...more); }; 0"
    )
    site.mouse.move(100, 550)
    site.mouse.move(1100, 550, steps=8)
    site.wait_for_timeout(200)
    assert len(site.evaluate("shows")) <= 1 and opened(site) is None


def test_a_selection_survives_text_that_comes_and_holds_the_grid_still(site: Page) -> None:
    make(site)
    site.evaluate("items[4].status = 'running'; items[4].version += 1; grid.update()")
    hover(site, 450, 200)
    until(site, lambda: opened(site) == [4, "hover"])
    settled(site)
    words = site.locator(".cell[data-open] .cell-text div")
    box = words.bounding_box()
    assert box is not None
    site.mouse.move(box["x"] + 3, box["y"] + 8)
    site.mouse.down()
    site.mouse.move(box["x"] + 200, box["y"] + 28, steps=4)
    before = shown(site)
    site.wait_for_timeout(150)
    site.mouse.up()
    chosen = site.evaluate("String(getSelection())")
    assert len(chosen) > 20
    site.evaluate(
        "for (const item of items) { item.append('more '.repeat(300)); item.version += 1; } items[4].status = 'done'; grid.update()"
    )
    hover(site, 700, 300)
    site.wait_for_timeout(250)
    assert shown(site) == before and site.evaluate("String(getSelection())") == chosen
    assert site.evaluate("grid.rows.cellOf(items[4]).text.textContent.endsWith('more ')")
    # Scrolled far away and back it is still there.
    site.evaluate("grid.node.scrollTop = 20000")
    site.wait_for_timeout(50)
    assert site.evaluate("String(getSelection())") == chosen
    site.evaluate("getSelection().removeAllRanges()")
    until(site, lambda: not site.evaluate("grid.still"))


def test_a_click_pins_and_escape_unpins(site: Page) -> None:
    make(site)
    site.mouse.click(450, 200)
    until(site, lambda: opened(site) == [4, "pin"])
    settled(site)
    hover(site, 750, 450)
    site.wait_for_timeout(200)
    assert opened(site) == [4, "pin"]
    site.get_by_role("button", name="Copy", exact=True).click()
    assert site.evaluate("copied") == [4] and opened(site) == [4, "pin"]
    site.keyboard.press("Escape")
    assert opened(site) is None
    # The buttons were outside the document when the language changed.
    site.evaluate(
        "document.querySelector('#language').value = 'zh'; document.querySelector('#language').dispatchEvent(new Event('change'))"
    )
    site.evaluate("grid.relabel()")
    site.mouse.click(450, 200)
    until(site, lambda: opened(site) == [4, "pin"])
    assert site.locator(".cell[data-open] .cell-state").text_content() == "完成"
    site.get_by_role("button", name="关闭", exact=True).click()
    site.evaluate(
        "document.querySelector('#language').value = 'en'; document.querySelector('#language').dispatchEvent(new Event('change'))"
    )
    assert opened(site) is None


def test_the_keyboard_reaches_every_cell(site: Page) -> None:
    make(site)
    here = "Number(document.activeElement.querySelector('.cell-id').textContent.slice(1))"
    assert site.evaluate("grid.canvas.querySelectorAll('.cell[tabindex=\"0\"]').length") == 1
    site.locator(".cell[tabindex='0']").focus()
    assert opened(site) == [0, "focus"]
    for key, goal in (
        ("ArrowRight", 1), ("ArrowDown", 4), ("ArrowLeft", 3), ("ArrowLeft", 2), ("End", 2), ("Home", 0), ("PageDown", 9), ("ArrowUp", 6),
        ("Control+End", 999), ("ArrowDown", 999), ("ArrowRight", 999), ("ArrowUp", 996), ("ArrowRight", 997), ("ArrowDown", 999),
        ("PageUp", 990), ("Control+Home", 0), ("ArrowUp", 0), ("ArrowLeft", 0),
    ):  # fmt: skip
        site.keyboard.press(key)
        assert site.evaluate(here) == goal, key
        assert opened(site) == [goal, "focus"]
    site.keyboard.press("Control+End")
    now = settled(site)
    _, top, _, bottom = now["cells"]["999"]
    assert top >= 0 and bottom <= 600, "all of it is in sight"
    site.keyboard.press("c")
    assert site.evaluate("copied") == [999]
    site.keyboard.press("Enter")
    assert opened(site) == [999, "pin"]
    site.keyboard.press("Escape")
    assert opened(site) is None and site.evaluate(here) == 999


def test_the_focus_is_not_lost_when_its_cell_is_scrolled_away(site: Page) -> None:
    make(site)
    site.locator(".cell[tabindex='0']").focus()
    site.keyboard.press("ArrowDown")
    site.evaluate("grid.node.scrollTop = 30000")
    site.wait_for_timeout(50)
    assert site.evaluate("grid.rows.itemAt(document.activeElement).id") == 3
    site.evaluate("grid.node.scrollTop = 0")
    site.wait_for_timeout(50)
    assert site.evaluate("grid.rows.itemAt(document.activeElement).id") == 3
    # Away again, and on by the keyboard from where it was.
    site.evaluate("grid.node.scrollTop = 30000")
    site.wait_for_timeout(50)
    site.keyboard.press("ArrowRight")
    assert site.evaluate("grid.rows.itemAt(document.activeElement).id") == 4
    assert settled(site)["scroll"] < 300
    # Somebody comes back to the window: the browser gives the focus back, and the grid stays where it was left.
    site.evaluate("document.activeElement.blur(); grid.node.scrollTop = 30000; dispatchEvent(new Event('blur'))")
    site.wait_for_timeout(50)
    site.evaluate("grid.canvas.querySelector('.cell[tabindex=\"0\"]').focus({ preventScroll: true })")
    now = settled(site)
    assert now["open"] is None and abs(now["scroll"] - 30000) < 400
    site.evaluate("dispatchEvent(new Event('focus'))")


def test_filters_and_widths_keep_what_is_in_sight(site: Page) -> None:
    make(site)
    site.evaluate("grid.node.scrollTop = 132 * 100 + 30; new Promise(requestAnimationFrame)")
    site.evaluate("grid.setFilter((item) => item.id % 2 === 0)")
    assert site.evaluate("grid.list.length") == 500
    top = min((cell[1], int(number)) for number, cell in shown(site)["cells"].items() if cell[3] > 0)
    assert top[1] in range(296, 304), "item 300 was the first in sight"
    site.evaluate("grid.setFilter(() => true)")
    site.evaluate("grid.node.style.width = '500px'")
    until(site, lambda: site.evaluate("grid.columns") == 2)
    first = min((cell[1], int(number)) for number, cell in shown(site)["cells"].items() if cell[3] > 0)
    assert first[1] in range(294, 304)
    site.evaluate("grid.setFilter(() => false)")
    assert site.evaluate("grid.canvas.hidden && !grid.empty.hidden") and site.evaluate("grid.node.scrollTop") == 0


def test_a_growing_text_shows_its_end_and_a_whole_one_its_beginning(site: Page) -> None:
    make(site, 6, prompts=True)
    site.evaluate("items[1].status = 'running'; items[1].append('x '.repeat(3000) + 'the very end'); items[1].version += 1; grid.update()")
    cell = "grid.rows.cellOf(items[1])"
    held = site.evaluate(f"{cell}.text.textContent")
    assert held.endswith("the very end") and len(held) <= 1600
    range_of_end = f"""(() => {{ const words = {cell}.text.firstChild.firstChild; const range = document.createRange();
      range.setStart(words, words.length - 3); range.setEnd(words, words.length);
      return range.getBoundingClientRect().bottom <= {cell}.node.getBoundingClientRect().bottom; }})()"""
    assert site.evaluate(range_of_end)
    site.evaluate("items[1].status = 'done'; items[1].version += 1; grid.update()")
    held = site.evaluate(f"{cell}.text.textContent")
    assert held.startswith("text 1 word") and len(held) <= 800
    site.evaluate("grid.show(items[1], 'pin')")
    assert site.evaluate(f"{cell}.text.textContent === items[1].text")
    site.evaluate("grid.close()")
    assert len(site.evaluate(f"{cell}.text.textContent")) <= 800
    assert site.locator(".cell-prompt:visible").count() == 6


def test_an_open_cell_holds_what_can_be_laid_out(site: Page) -> None:
    """However long the text, and whatever is in it: thousands of marks on one letter take a browser many seconds."""
    make(site, 2)
    site.evaluate("items[0].append('e' + '\u0301'.repeat(300000)); items[0].status = 'done'; items[0].version += 1; grid.update()")
    cell = "grid.rows.cellOf(items[0])"
    took = site.evaluate(
        f"(() => {{ const from = performance.now(); grid.show(items[0], 'pin'); {cell}.node.getBoundingClientRect(); return performance.now() - from; }})()"
    )
    assert took < 5000
    assert site.evaluate(f"{cell}.text.textContent.length") == 20_000
    assert "20,000 of 300,308" in site.evaluate(f"{cell}.facts.textContent")
    assert site.evaluate("items[0].text.length") > 300_000
    site.evaluate("items[1].status = 'running'; items[1].append('x'.repeat(90000) + 'end'); items[1].version += 1; grid.update()")
    site.evaluate("grid.close(); grid.show(items[1], 'pin')")
    held = site.evaluate("grid.rows.cellOf(items[1]).text.textContent")
    assert held.endswith("end") and len(held) <= 40_000
