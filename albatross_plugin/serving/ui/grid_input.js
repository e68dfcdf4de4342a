/** How the grid is used: the pointer and the keyboard. */

const HOVER_MS = 120;
const LINE = 40;

/** Hovering opens a cell, a click keeps it open, selecting holds everything still. */
export class Pointer {
  #grid;
  #timer = 0;
  // The item under the pointer, null beside all cells, undefined where that is not known.
  #over = undefined;
  #at = { x: -1, y: -1 };
  #pressed = false;
  #selected = false;
  // What was under the pointer when its button went down; null where that only ended a selection.
  #began = null;

  constructor(grid) {
    this.#grid = grid;
    grid.node.addEventListener("pointermove", (event) => this.#moved(event));
    grid.node.addEventListener("pointerleave", (event) => this.#wait(event.pointerType === "touch" ? undefined : null));
    grid.node.addEventListener("pointerdown", (event) => this.#down(event));
    grid.node.addEventListener("click", (event) => this.#clicked(event));
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => this.#up());
    document.addEventListener("selectionchange", () => this.#selection());
  }

  get pressed() {
    return this.#pressed;
  }

  /** The grid has been scrolled: what is under the pointer counts once it moves. */
  scrolled() {
    clearTimeout(this.#timer);
    this.#over = undefined;
  }

  #moved({ clientX: x, clientY: y, pointerType }) {
    // Browsers tell a move, too, when something else moves below a pointer that rests.
    if (pointerType === "touch" || (x === this.#at.x && y === this.#at.y)) return;
    this.#at = { x, y };
    const over = this.#hit()?.item ?? null;
    if (over !== this.#over) this.#wait(over);
  }

  #wait(over) {
    clearTimeout(this.#timer);
    this.#over = over;
    if (over !== undefined) this.#timer = setTimeout(() => this.#settle(), HOVER_MS);
  }

  #settle() {
    const grid = this.#grid;
    if (grid.still || grid.open?.by === "pin") {
      this.#over = undefined;
      return;
    }
    // The cells may have moved since then.
    const hit = this.#over === null ? null : this.#hit();
    this.#over = hit?.item ?? null;
    if (hit === null) {
      if (grid.open?.by === "hover") grid.close();
    } else if (grid.open?.item !== hit.item) grid.show(hit.item, "hover", hit.y);
  }

  /** `{item, y}` under the pointer, `y` from the window's upper edge; or null. */
  #hit() {
    const { node, layout, scroll, list, columns, view } = this.#grid;
    const edge = node.getBoundingClientRect();
    const x = this.#at.x - edge.left - node.clientLeft;
    const y = this.#at.y - edge.top - node.clientTop;
    if (x < 0 || y < 0 || x >= view.width || y >= view.height || scroll + y >= layout.total) return null;
    const item = list[layout.rowAt(scroll + y) * columns + layout.columnAt(x)];
    return item ? { item, y } : null;
  }

  #down({ target, button, clientX: x, clientY: y }) {
    if (button !== 0 || !target.closest(".cell")) return;
    this.#at = { x, y };
    this.#began = this.#selected ? null : this.#grid.rows.itemAt(target);
    this.#pressed = true;
    this.#tell();
  }

  #up() {
    this.#pressed = false;
    this.#tell();
  }

  #selection() {
    const selection = getSelection();
    const inside = (node) => node !== null && this.#grid.canvas.contains(node);
    this.#selected = !selection.isCollapsed && (inside(selection.anchorNode) || inside(selection.focusNode));
    this.#tell();
  }

  #tell() {
    this.#grid.still = this.#pressed || this.#selected;
  }

  #clicked({ target }) {
    const grid = this.#grid;
    const item = this.#began;
    this.#began = null;
    if (item === null || this.#selected || target.closest("button")) return;
    const pinned = grid.open?.item === item && grid.open.by === "pin";
    if (!pinned) grid.show(item, "pin", this.#hit()?.y ?? null);
    // A click into the text may be the start of a selection.
    else if (target.closest(".cell-head")) grid.close();
  }
}

/** Arrows and the like move the focus, which opens a cell; Enter keeps it open; `c` copies. */
export class Keyboard {
  /** The focus is about to move without opening anything. */
  quiet = false;
  // The window is left, or has just been come back to: the browser then gives the focus to where it was, which is nobody's wish to go there.
  #away = false;
  #grid;

  constructor(grid) {
    this.#grid = grid;
    grid.canvas.addEventListener("keydown", (event) => this.#pressed(event));
    grid.canvas.addEventListener("focusin", (event) => this.#entered(event));
    grid.canvas.addEventListener("focusout", (event) => this.#left(event));
    addEventListener("blur", () => (this.#away = true));
    addEventListener("focus", () => setTimeout(() => (this.#away = false)));
  }

  #entered({ target }) {
    const { rows, pointer } = this.#grid;
    const item = rows.itemAt(target);
    if (item === null) return;
    rows.focused(item);
    if (!this.quiet && !this.#away && !pointer.pressed && target.matches(".cell")) this.#grid.show(item, "focus");
  }

  #left({ relatedTarget }) {
    const { canvas, open } = this.#grid;
    if (open?.by === "focus" && !canvas.contains(relatedTarget)) this.#grid.close();
  }

  #pressed(event) {
    const grid = this.#grid;
    const item = grid.rows.itemAt(event.target);
    if (item === null || event.altKey || event.metaKey || event.shiftKey) return;
    const handled = event.ctrlKey ? this.#leap(event.key) : this.#act(event, item) || this.#scrolls(event.key, item) || this.#move(event.key, item);
    if (handled) event.preventDefault();
  }

  #act({ key, target }, item) {
    const grid = this.#grid;
    const pinned = grid.open?.item === item && grid.open.by === "pin";
    if (key === "Escape") {
      if (grid.open === null) return false;
      grid.close();
      grid.rows.focus(item, { quiet: true });
    } else if (target.closest("button")) return false;
    else if (key === "c") grid.onCopy(item);
    else if (key !== "Enter" && key !== " ") return false;
    else if (pinned) grid.close();
    else grid.show(item, "pin");
    return true;
  }

  /** In a cell that is pinned the keys move its text, where there is more of it than fits. */
  #scrolls(key, item) {
    const { open, rows } = this.#grid;
    if (open?.item !== item || open.by !== "pin") return false;
    const { node } = rows.cellOf(item);
    if (node.scrollHeight <= node.clientHeight + 1) return false;
    const page = node.clientHeight - LINE;
    const steps = { ArrowUp: -LINE, ArrowDown: LINE, PageUp: -page, PageDown: page, Home: -node.scrollHeight, End: node.scrollHeight };
    if (!Object.hasOwn(steps, key)) return false;
    node.scrollTop += steps[key];
    return true;
  }

  #move(key, item) {
    const { list, columns, view, layout } = this.#grid;
    const index = list.indexOf(item);
    const first = index - (index % columns);
    const page = columns * Math.max(1, Math.floor(view.height / layout.height) - 1);
    const goals = {
      ArrowLeft: index - 1,
      ArrowRight: index + 1,
      ArrowUp: index - columns,
      ArrowDown: index + columns,
      Home: first,
      End: first + columns - 1,
      PageUp: Math.max(index % columns, index - page),
      PageDown: index + page,
    };
    if (index < 0 || !Object.hasOwn(goals, key)) return false;
    const goal = Math.min(goals[key], list.length - 1);
    // Down from above a last row that is not full leads to its end; from the last row itself nowhere.
    if (goal >= 0 && !(goals[key] > goal && first + columns >= list.length && key !== "End")) this.#focus(list[goal]);
    return true;
  }

  #leap(key) {
    const { list } = this.#grid;
    if (key !== "Home" && key !== "End") return false;
    this.#focus(list.at(key === "Home" ? 0 : -1));
    return true;
  }

  #focus(item) {
    // Whoever goes on by keys is done with what was selected.
    if (this.#grid.still) getSelection().removeAllRanges();
    this.#grid.rows.focus(item);
  }
}
