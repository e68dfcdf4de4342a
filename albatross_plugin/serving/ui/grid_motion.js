/** The way from one layout of the grid to another. */

const MS = 140;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Motion {
  #grid;
  #way = null;
  #frame = 0;

  constructor(grid) {
    this.#grid = grid;
  }

  /** Goes to a layout and a scroll: the upper edge of `row` moves evenly on the screen, and all else with it. */
  go({ layout, scroll }, row) {
    const { layout: from, scroll: at } = this.#grid;
    this.#way = { from, to: layout, row, top: from.top(row) - at, goal: layout.top(row) - scroll, began: performance.now() };
    this.#step(calm.matches ? Infinity : this.#way.began);
  }

  /** Stays where it is. */
  stop() {
    cancelAnimationFrame(this.#frame);
    this.#way = null;
  }

  /** Somebody has scrolled meanwhile. */
  shift(by) {
    if (this.#way === null) return;
    this.#way.top -= by;
    this.#way.goal -= by;
  }

  #step(now) {
    cancelAnimationFrame(this.#frame);
    const way = this.#way;
    const part = Math.min(1, Math.max(0, (now - way.began) / MS));
    const eased = 1 - (1 - part) ** 3;
    const layout = part === 1 ? way.to : way.from.towards(way.to, eased);
    this.#grid.layout = layout;
    this.#grid.scroll = Math.max(0, layout.top(way.row) - (way.top + (way.goal - way.top) * eased));
    this.#grid.rows.render();
    if (part === 1) this.#way = null;
    else this.#frame = requestAnimationFrame((then) => this.#step(then));
  }
}
