/** A grid of many items of which only those in sight are in the document. */

import { el } from "./dom.js";
import { Keyboard, Pointer } from "./grid_input.js";
import { close, columnsFor, Layout, openInView, openUnder } from "./grid_layout.js";
import { Motion } from "./grid_motion.js";
import { Rows } from "./grid_rows.js";
import { t, translate } from "./words.js";

const HEIGHT = 132;
const PROMPT = 22;
// A list that changes all the time cannot be read.
const REFILTER_MS = 500;

/** `node` goes into the page. */
export class Grid {
  /** The open cell: `{item, by}`, where `by` is `hover`, `focus` or `pin`; or null. */
  open = null;
  /** Items that are shown, in order. */
  list = [];
  /** Whether each cell tells its prompt. */
  prompts = false;
  layout = Layout.even(0, 1, 0, HEIGHT);
  view = { width: 0, height: 0 };
  #items = [];
  #matches = () => true;
  #still = false;
  #filteredAt = 0;
  #scroll = 0;
  // Where the grid was before the pointer opened cells; null where it has moved on since.
  #home = null;

  /** @param {{onCopy: function(Item): void}} calls `onCopy`: an item's text is asked for */
  constructor({ onCopy }) {
    this.onCopy = onCopy;
    this.canvas = el("div", { class: "grid-canvas", role: "grid", "data-t-label": "batch.grid", hidden: true });
    this.empty = el("p", { class: "grid-empty muted" });
    this.node = el("div", { class: "grid" }, this.canvas, this.empty);
    const tool = (key, click) => el("button", { type: "button", class: "cell-tool", tabindex: "-1", "data-t": key, on: { click } });
    this.tools = el("span", { class: "cell-tools" }, tool("batch.copy.one", () => this.onCopy(this.open.item)), tool("batch.unpin", () => this.close()));
    this.rows = new Rows(this);
    this.motion = new Motion(this);
    this.pointer = new Pointer(this);
    this.keyboard = new Keyboard(this);
    this.node.addEventListener("scroll", () => this.#scrolled());
    new ResizeObserver(() => this.#resized()).observe(this.node);
  }

  // --- what is shown ---

  /** Other items, from the top. */
  setItems(items, { prompts = false } = {}) {
    this.open = null;
    this.#items = items;
    this.prompts = prompts;
    this.rows.clear();
    this.#filter(null);
  }

  /** Shows only the items for which `matches` is true. What is at the top of the window stays there, as far as it is in the list. */
  setFilter(matches) {
    this.open = null;
    this.#matches = matches;
    this.#filter(this.#anchor());
  }

  /** Items have changed. `settled`: no more will soon, so the list is put in order at once. */
  update({ settled = false } = {}) {
    const due = settled || performance.now() - this.#filteredAt > REFILTER_MS;
    if (due && !this.#still && this.open === null && this.#stale()) this.#filter(this.#anchor());
    else this.rows.refresh();
  }

  /** While somebody presses the button of the mouse on a cell, or has selected text, nothing moves. */
  get still() {
    return this.#still;
  }

  set still(value) {
    if (value === this.#still) return;
    this.#still = value;
    if (!value) this.update({ settled: true });
  }

  /** Says all words again, in another language. */
  relabel() {
    // They may be outside the document just now.
    for (const tool of this.tools.children) translate(tool);
    this.rows.relabel();
    this.#tellEmpty();
  }

  #stale() {
    let at = 0;
    for (const item of this.#items) if (this.#matches(item) && this.list[at++] !== item) return true;
    return at !== this.list.length;
  }

  #filter(anchor) {
    this.#filteredAt = performance.now();
    this.list = this.#items.filter((item) => this.#matches(item));
    this.#arrange(anchor);
  }

  #tellEmpty() {
    this.canvas.hidden = this.list.length === 0;
    this.empty.hidden = this.list.length > 0;
    this.empty.textContent = t(this.#items.length ? "batch.grid.none" : "batch.grid.empty");
  }

  // --- where it is shown ---

  get columns() {
    return this.layout.widths.length;
  }

  /** How far the window is down, in pixels. */
  get scroll() {
    return this.#scroll;
  }

  set scroll(value) {
    this.#scroll = Math.round(value);
    this.#stretch();
    if (this.node.scrollTop !== this.#scroll) this.node.scrollTop = this.#scroll;
  }

  /** While a cell is open the window may be a little below the end of the list: it keeps its place by that. */
  #stretch() {
    const { total } = this.layout;
    const height = this.#scroll > 0 ? Math.max(total, this.#scroll + this.view.height) : total;
    this.canvas.style.height = `${height}px`;
  }

  /** Row and column of an item, or null where it is not in the list. */
  placeOf(item) {
    const index = this.list.indexOf(item);
    return index < 0 ? null : { row: Math.floor(index / this.columns), column: index % this.columns };
  }

  /** The first item in sight, and how far its row is from the window's upper edge; null at the very top, which stays the top. */
  #anchor() {
    if (this.layout.rows === 0 || this.#scroll === 0) return null;
    const row = this.layout.rowAt(this.#scroll);
    return { id: this.list[row * this.columns].id, offset: this.layout.top(row) - this.#scroll };
  }

  /** Lays everything out anew. `anchor` keeps its place, or else the first item after it. */
  #arrange(anchor) {
    this.motion.stop();
    this.#home = null;
    const columns = columnsFor(this.view.width);
    const height = HEIGHT + (this.prompts ? PROMPT : 0);
    this.layout = Layout.even(Math.ceil(this.list.length / columns), columns, this.view.width, height);
    this.canvas.setAttribute("aria-rowcount", String(this.layout.rows));
    this.canvas.setAttribute("aria-colcount", String(columns));
    this.#tellEmpty();
    this.#place(anchor);
    this.rows.arranged();
  }

  #place(anchor) {
    let scroll = 0;
    if (anchor !== null) {
      const found = this.list.findIndex((item) => item.id >= anchor.id);
      const row = Math.floor((found < 0 ? this.list.length - 1 : found) / this.columns);
      scroll = this.layout.top(Math.max(0, row)) - anchor.offset;
    }
    scroll = Math.max(0, Math.min(scroll, this.layout.total - this.view.height));
    const place = this.open && this.placeOf(this.open.item);
    if (place) ({ layout: this.layout, scroll } = openInView(this.layout, scroll, { ...place, view: this.view.height }));
    else this.open = null;
    this.scroll = scroll;
  }

  #resized() {
    const { clientWidth: width, clientHeight: height } = this.node;
    // Nothing is seen of a tab that is not shown; what was there comes back as it was.
    if (width === 0 || (width === this.view.width && height === this.view.height)) return;
    const anchor = this.#anchor();
    this.view = { width, height };
    this.#arrange(anchor);
  }

  #scrolled() {
    const now = Math.round(this.node.scrollTop);
    if (now === this.#scroll || this.node.clientWidth === 0) return;
    this.motion.shift(now - this.#scroll);
    if (this.#home !== null) this.#home += now - this.#scroll;
    this.#scroll = now;
    this.#stretch();
    this.pointer.scrolled();
    this.rows.render();
  }

  // --- the open cell ---

  /** Opens an item's cell under the pointer, whose height in the window is `y`, or, without one, in sight. */
  show(item, by, y = null) {
    const place = this.placeOf(item);
    if (place === null || (this.open?.item === item && this.open.by === "pin")) return;
    const opens = this.open?.item !== item;
    if (y === null) this.#home = null;
    else if (this.open === null) this.#home = this.#scroll;
    this.open = { item, by };
    const at = { ...place, view: this.view.height };
    if (opens) this.motion.go(y === null ? openInView(this.layout, this.#scroll, at) : openUnder(this.layout, this.#scroll, { ...at, y }), place.row);
    this.rows.refresh();
  }

  close() {
    if (this.open === null) return;
    const place = this.placeOf(this.open.item);
    this.open = null;
    if (this.#stale()) return this.#filter(this.#anchor());
    if (place) this.motion.go(close(this.layout, this.#scroll, { row: place.row, view: this.view.height, home: this.#home }), place.row);
    this.rows.refresh();
  }
}
