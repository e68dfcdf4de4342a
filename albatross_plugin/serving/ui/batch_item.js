/** One text of a batch: its state and what it has said so far. No DOM. */

export const STATES = ["pending", "running", "done", "aborted", "error"];
const FINAL = new Set(["done", "aborted", "error"]);
// So many pieces are kept apart before they are joined: joining at each piece would copy a long text again and again.
const LOOSE = 64;

/**
 * `error`: `{message, code}` or null; the code `cut` means that the stream ended before the item did. `version` grows with each
 * change, so that a view sees by one comparison whether it is up to date.
 */
export class Item {
  status = "pending";
  tokens = 0;
  finishReason = null;
  error = null;
  seed = null;
  /** Whether the page ended it, since the stream did not get so far. */
  broken = false;
  version = 0;
  /** UTF-16 units of the text. */
  length = 0;
  #whole = "";
  #loose = [];

  constructor(id, prompt) {
    this.id = id;
    this.prompt = prompt;
  }

  get final() {
    return FINAL.has(this.status);
  }

  /** What is shown as its state: as `status`, and `cut` for an error of that code. */
  get shown() {
    return this.status === "error" && this.error?.code === "cut" ? "cut" : this.status;
  }

  get text() {
    return this.#whole + this.#loose.join("");
  }

  append(piece) {
    if (piece === "") return;
    this.#loose.push(piece);
    this.length += piece.length;
    if (this.#loose.length <= LOOSE) return;
    this.#whole += this.#loose.join("");
    this.#loose = [];
  }

  /** The text from one place to another; cheap near the end. */
  slice(from, to = this.length) {
    const settled = this.#whole.length;
    if (to <= settled) return this.#whole.slice(from, to);
    if (from >= settled) return this.#loose.join("").slice(from - settled, to - settled);
    return this.text.slice(from, to);
  }
}
