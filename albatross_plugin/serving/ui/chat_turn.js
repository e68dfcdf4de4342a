/** One turn on the page: the question, the answer as it grows, and what is to be said about the answer. */

import { lost } from "./chat_history.js";
import { announce, clear, el } from "./dom.js";
import { Marks } from "./marks.js";
import { t } from "./words.js";

const COPIED_MS = 1500;
const HINTS = { connection: "error.connection", model_not_loaded: "chat.no_model", model_loading: "chat.loading" };

export class TurnView {
  #waiting = "";
  #frame = 0;
  #marks = new Marks();

  /**
   * @param {import("./chat_history.js").Turn} turn
   * @param {import("./chat_log.js").Log} log
   * @param {{onRetry: () => void}} options
   */
  constructor(turn, log, { onRetry }) {
    this.turn = turn;
    this.log = log;
    this.text = document.createTextNode(this.#marks.shown(turn.answer));
    this.body = el("div", { class: "chat-text", dir: "auto" }, this.text);
    this.note = el("p", { class: "chat-note" });
    this.copy = el("button", { type: "button", class: "plain small", "data-t": "chat.copy", on: { click: () => this.#copy() } });
    this.retry = el("button", { type: "button", class: "plain small", "data-t": "chat.retry", on: { click: onRetry } });
    this.question = el(
      "article",
      { class: "chat-message chat-user", "data-t-label": "chat.you" },
      el("p", { class: "chat-who", "data-t": "chat.you" }),
      el("div", { class: "chat-text", dir: "auto" }, document.createTextNode(new Marks().shown(turn.question))),
    );
    this.answer = el(
      "article",
      { class: "chat-message chat-model", "data-t-label": "chat.model" },
      el("p", { class: "chat-who", "data-t": "chat.model" }),
      this.body,
      this.note,
      el("div", { class: "actions chat-actions" }, this.copy, this.retry),
    );
    this.settle({ last: true });
  }

  remove() {
    cancelAnimationFrame(this.#frame);
    this.question.remove();
    this.answer.remove();
  }

  /** More of the answer. It is written once a frame, however many pieces come. */
  add(piece) {
    // Most models begin with a blank, which in the next call would stand beside that of the prompt.
    const text = this.turn.answer === "" ? piece.trimStart() : piece;
    if (text === "") return;
    this.turn.answer += text;
    this.#waiting += text;
    // No frames come while the page is hidden; what waits is written at the end or when they do.
    this.#frame ||= requestAnimationFrame(() => this.#write());
  }

  /** Shows how the answer stands. `last`: it is the newest one, which can be asked for again. */
  settle({ last }) {
    this.#write();
    const { turn } = this;
    const running = turn.end === null;
    this.answer.setAttribute("aria-busy", String(running));
    this.answer.dataset.end = turn.end ?? "running";
    this.copy.hidden = running || turn.answer === "";
    this.retry.hidden = running || !last;
    this.#tell();
    this.log.follow();
  }

  #write() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#waiting === "") return;
    const first = this.text.length === 0;
    // Appended, not replaced: what the reader has selected stays selected.
    this.text.appendData(this.#marks.shown(this.#waiting));
    this.#waiting = "";
    if (first) this.#tell();
    this.log.follow();
  }

  /** Sentences about the answer, each in the language spoken. */
  #tell() {
    const { turn } = this;
    const said = [];
    if (turn.end === null && this.text.length === 0) said.push(["chat.waiting"]);
    if ((turn.end === "done" || turn.end === "length") && turn.answer === "") said.push(["chat.none"]);
    if (turn.end === "error") said.push(Object.hasOwn(HINTS, turn.code ?? "") ? [HINTS[turn.code]] : ["chat.error", { message: turn.message }]);
    else if (turn.end !== null && turn.end !== "done") said.push([`chat.${turn.end}`]);
    if (turn.retryAfter) said.push(["chat.wait", { seconds: Math.ceil(turn.retryAfter) }]);
    if (turn.skipped) said.push(["chat.skipped", { n: turn.skipped }]);
    if (turn.end !== null && lost(turn)) said.push(["chat.lost"]);
    const sentences = said.map(([key, values = {}]) => {
      // Alone of these it has a link; what a server says may have brackets of its own.
      const link = key === "chat.no_model" ? "#model" : null;
      return el("span", { "data-t": key, "data-t-values": JSON.stringify(values), "data-t-link": link });
    });
    clear(this.note).append(...sentences);
    this.note.hidden = said.length === 0;
  }

  async #copy() {
    const done = await copied(this.turn.answer, this.body);
    announce(t(done ? "chat.copied" : "chat.not_copied"));
    if (!done) return;
    this.#label("chat.copied");
    setTimeout(() => this.#label("chat.copy"), COPIED_MS);
  }

  #label(key) {
    this.copy.dataset.t = key;
    this.copy.textContent = t(key);
  }
}

/** Puts a text into the clipboard; where the browser forbids that, `node` is left selected. */
async function copied(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS there is no clipboard but this one.
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}
