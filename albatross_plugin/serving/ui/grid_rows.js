/** The rows and cells that are in the document: those in sight and a few around, used again and again. */

import { el } from "./dom.js";
import { Cell } from "./grid_cell.js";

// Rows beyond each edge of the window, so that a quick scroll finds them there.
const AROUND = 2;

class Row {
  index = -1;
  #top = -1;
  #height = -1;

  constructor(columns) {
    this.cells = Array.from({ length: columns }, (_, column) => new Cell(column));
    this.node = el("div", { class: "grid-row", role: "row" }, this.cells.map((cell) => cell.node));
  }

  place(top, height) {
    if (top !== this.#top) this.node.style.transform = `translateY(${top}px)`;
    if (height !== this.#height) this.node.style.height = `${height}px`;
    this.#top = top;
    this.#height = height;
  }
}

export class Rows {
  #grid;
  #rows = new Map();
  #spare = [];
  #columns = "";
  // The item that Tab reaches.
  #current = null;

  constructor(grid) {
    this.#grid = grid;
  }

  /** The cell in the document that shows an item. */
  cellOf(item) {
    return this.#cells().find((cell) => cell.item === item) ?? null;
  }

  /** The item whose cell a node is in. */
  itemAt(node) {
    return this.#cells().find((cell) => cell.node.contains(node))?.item ?? null;
  }

  clear() {
    for (const row of this.#rows.values()) row.node.remove();
    this.#rows.clear();
    this.#spare = [];
    this.#current = null;
  }

  /** The list or the number of columns is another one. A cell that had the focus has it again, as long as there is one. */
  arranged() {
    const { canvas, columns } = this.#grid;
    const focused = canvas.contains(document.activeElement) ? this.#current : null;
    const current = this.#current;
    if (this.#cells()[0] && this.#rows.values().next().value.cells.length !== columns) this.clear();
    this.#spare = this.#spare.filter((row) => row.cells.length === columns);
    this.#current = current;
    for (const row of this.#rows.values()) this.#bind(row);
    this.render();
    if (focused !== null) this.#refocus(focused);
  }

  /** The item may have left the list: the next one in order takes its place. */
  #refocus(item) {
    const { list } = this.#grid;
    const next = list.find((each) => each.id >= item.id) ?? list.at(-1);
    if (next && !this.cellOf(next)?.node.contains(document.activeElement)) this.focus(next, { quiet: true });
  }

  /** Puts the rows in sight where the layout has them. */
  render() {
    const { layout, scroll, view, canvas } = this.#grid;
    const columns = layout.widths.map((width) => `${width}px`).join(" ");
    if (columns !== this.#columns) canvas.style.setProperty("--columns", columns);
    this.#columns = columns;
    const from = Math.max(0, layout.rowAt(scroll) - AROUND);
    const to = Math.min(layout.rows - 1, layout.rowAt(scroll + view.height) + AROUND);
    for (const [index, row] of this.#rows) if (index < from || index > to) this.#release(index, row);
    for (let index = from; index <= to; index += 1) if (!this.#rows.has(index)) this.#take(index);
    for (const row of this.#spare) row.node.remove();
    for (const [index, row] of this.#rows) row.place(layout.top(index), layout.heightOf(index));
    this.#ensureTabStop(layout.rowAt(scroll));
    this.refresh();
  }

  /** Brings cells up to date whose items have changed, and the one that is open. */
  refresh() {
    const { open, still, tools } = this.#grid;
    let toolless = true;
    for (const cell of this.#cells()) {
      const by = open !== null && cell.item === open.item ? open.by : null;
      cell.refresh({ open: by, still });
      if (by === null) continue;
      if (tools.parentNode !== cell.head) cell.head.append(tools);
      toolless = false;
    }
    if (toolless) tools.remove();
  }

  relabel() {
    this.#spare = [];
    for (const cell of this.#cells()) cell.relabel();
    this.refresh();
  }

  /** Gives an item's cell the focus. `quiet`: it is not opened for that. */
  focus(item, { quiet = false } = {}) {
    const place = this.#grid.placeOf(item);
    if (place === null) return;
    if (!this.#rows.has(place.row)) {
      this.#take(place.row);
      this.#rows.get(place.row).place(this.#grid.layout.top(place.row), this.#grid.layout.heightOf(place.row));
      this.refresh();
    }
    const { keyboard } = this.#grid;
    keyboard.quiet = quiet;
    this.cellOf(item).node.focus({ preventScroll: true });
    keyboard.quiet = false;
  }

  /** The focus has come to an item's cell. */
  focused(item) {
    this.#current = item;
    this.#setTabStops();
  }

  #cells() {
    return Array.from(this.#rows.values(), (row) => row.cells).flat();
  }

  /** A row that has the focus, or selected text, stays, wherever it is: it would lose both. */
  #release(index, row) {
    const selection = this.#grid.still ? getSelection() : null;
    const kept = [document.activeElement, selection?.anchorNode, selection?.focusNode].some((node) => node && row.node.contains(node));
    if (kept && index < this.#grid.layout.rows) return;
    this.#rows.delete(index);
    this.#spare.push(row);
  }

  #take(index) {
    const row = this.#spare.pop() ?? new Row(this.#grid.columns);
    row.index = index;
    this.#bind(row);
    // In order, for those who read the document and not the screen.
    let next = null;
    for (const other of this.#rows.values()) if (other.index > index && (next === null || other.index < next.index)) next = other;
    this.#rows.set(index, row);
    this.#grid.canvas.insertBefore(row.node, next?.node ?? null);
  }

  #bind(row) {
    const { list, columns, prompts } = this.#grid;
    row.node.setAttribute("aria-rowindex", String(row.index + 1));
    for (const [column, cell] of row.cells.entries()) cell.bind(list[row.index * columns + column] ?? null, { prompts });
  }

  /** One cell is reached by Tab: the one that was reached last, or the first in sight. */
  #ensureTabStop(row) {
    const { list, columns } = this.#grid;
    if (this.#current === null || this.cellOf(this.#current) === null) this.#current = list[row * columns] ?? null;
    this.#setTabStops();
  }

  #setTabStops() {
    for (const cell of this.#cells()) cell.tabStop = cell.item !== null && cell.item === this.#current;
  }
}
