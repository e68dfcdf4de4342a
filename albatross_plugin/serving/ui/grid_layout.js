/**
 * Where the cells of the grid are. Lengths are CSS pixels; heights count from the top of the first row. No DOM.
 *
 * One cell may be open. It is larger than the others at the cost of the columns beside it and by pushing the rows apart, and the
 * geometry is such that a pointer over a cell stays over it when that cell opens:
 * - across, the other columns shrink by one factor. So the cell's left edge (a sum of columns before it) and its right edge (the
 *   width less the sum of those after it) can only move outwards, from the even layout and from one where another cell is open;
 * - down, `openUnder` keeps the cell's upper edge where it is on the screen by scrolling as much as the rows above have changed, or
 *   moves it up as far as it takes to show all of the cell. Where the top of the list leaves no room for that, the row comes up, and is
 *   as tall as it takes to reach the pointer.
 * Both edges move evenly in between, so the pointer is inside at every moment of the way.
 */

const NARROWEST = 230;
const OPEN = 2.5;
const NEXT = 0.5;
// The open column takes so much more than its share, and from each of the others at most so much of theirs.
const WIDER = 0.9;
const GIVEN = 0.4;
// The pointer is at least so far inside.
const EDGE = 12;

/** How many columns fit. */
export function columnsFor(width) {
  return Math.max(1, Math.floor(width / NARROWEST));
}

/** Rows of one height, but for `extras`, a map from a row to the pixels that it is taller; and the columns' `widths`. */
export class Layout {
  constructor({ rows, height, widths, extras = new Map() }) {
    this.rows = rows;
    this.height = height;
    this.widths = widths;
    this.extras = extras;
  }

  /** All cells alike. */
  static even(rows, columns, width, height) {
    return new Layout({ rows, height, widths: Array(columns).fill(width / columns) });
  }

  get width() {
    return this.widths.reduce((sum, each) => sum + each, 0);
  }

  get total() {
    return this.top(this.rows);
  }

  top(row) {
    let top = row * this.height;
    for (const [taller, extra] of this.extras) if (taller < row) top += extra;
    return Math.round(top);
  }

  heightOf(row) {
    return this.top(row + 1) - this.top(row);
  }

  /** The row at a height, clamped to those there are. */
  rowAt(y) {
    let row = Math.floor(y / this.height);
    while (row > 0 && this.top(row) > y) row -= 1;
    return Math.max(0, Math.min(this.rows - 1, row));
  }

  columnAt(x) {
    let column = 0;
    let right = this.widths[0];
    while (right <= x && column < this.widths.length - 1) {
      column += 1;
      right += this.widths[column];
    }
    return column;
  }

  /** The same rows and columns with one cell open; `above`, `own` and `below` are the heights that its row and those beside it gain. */
  opened(row, column, { above, own, below }) {
    const count = this.widths.length;
    const even = this.width / count;
    const more = Math.min(even * WIDER, even * GIVEN * (count - 1));
    const widths = this.widths.map((_, each) => (each === column ? even + more : even - more / (count - 1)));
    const extras = new Map();
    if (row > 0 && above > 0) extras.set(row - 1, above);
    extras.set(row, own);
    if (row < this.rows - 1) extras.set(row + 1, below);
    return new Layout({ rows: this.rows, height: this.height, widths, extras });
  }

  closed() {
    return Layout.even(this.rows, this.widths.length, this.width, this.height);
  }

  /** Part of the way to another layout of as many rows and columns: `part` 0 is this one, 1 the other. */
  towards(other, part) {
    const between = (from, to) => from + (to - from) * part;
    const extras = new Map();
    for (const row of new Set([...this.extras.keys(), ...other.extras.keys()])) {
      extras.set(row, between(this.extras.get(row) ?? 0, other.extras.get(row) ?? 0));
    }
    return new Layout({ rows: this.rows, height: this.height, widths: this.widths.map((width, each) => between(width, other.widths[each])), extras });
  }
}

/** The row above grows into what is visible above it, and not beyond: it would lose its upper lines. */
function gains(layout, top, own = (OPEN - 1) * layout.height) {
  const most = NEXT * layout.height;
  return { above: Math.max(0, Math.min(most, top - layout.height)), own, below: most };
}

/**
 * A cell opens under the pointer.
 * @param {Layout} now what is on the screen
 * @param {number} scroll pixels above the window
 * @param {{row: number, column: number, y: number, view: number}} at the cell, the pointer's height in the window, and the window's
 * @returns {{layout: Layout, scroll: number}}
 */
export function openUnder(now, scroll, { row, column, y, view }) {
  const top = Math.min(now.top(row) - scroll, Math.max(0, view - OPEN * now.height));
  let layout = now.opened(row, column, gains(now, top));
  const wanted = layout.top(row) - top;
  if (wanted >= 0) return { layout, scroll: wanted };
  const missing = y + EDGE - (layout.top(row) + layout.heightOf(row));
  if (missing > 0) layout = now.opened(row, column, gains(now, top, layout.heightOf(row) - now.height + missing));
  return { layout, scroll: 0 };
}

/** A cell opens that the keyboard has reached: as far as it fits, all of it is in a window of height `view`. */
export function openInView(now, scroll, { row, column, view }) {
  const was = now.top(row) - scroll;
  const open = OPEN * now.height;
  // The rows beside it are seen a little too, which tells that there are more.
  const room = Math.min(now.height / 3, Math.max(0, (view - open) / 2));
  const top = Math.max(row > 0 ? room : 0, Math.min(was, view - open - room));
  const layout = now.opened(row, column, gains(now, top));
  return { layout, scroll: Math.max(0, layout.top(row) - top) };
}

/**
 * The open cell closes. All goes back to the scroll `home`, where the grid was when nothing was open, if there is one and the cell is
 * in sight there; else the cell's upper edge stays where it is.
 */
export function close(now, scroll, { row, view, home = null }) {
  const layout = now.closed();
  const top = layout.top(row);
  const back = home !== null && top >= home && top + layout.height <= home + view;
  const wanted = back ? home : top - (now.top(row) - scroll);
  return { layout, scroll: Math.max(0, Math.min(wanted, layout.total - view)) };
}
