/** One cell of the grid: shows an item, and touches only what has changed of it. */

import { el } from "./dom.js";
import { number } from "./numbers.js";
import { t, words } from "./words.js";

/** State as a sign, beside its word and its colour. */
const SIGNS = { pending: "○", running: "▸", done: "✓", aborted: "■", error: "✕", cut: "╱" };
// A closed cell holds no more than it can show, so that a thousand long texts cost nothing.
const HELD = 800;
const HELD_PROMPT = 200;
// An open one holds what a browser can lay out without a pause, whatever is written in it; copies and exports have all.
const HELD_OPEN = 20_000;

export class Cell {
  item = null;
  #version = -1;
  #status = "";
  #open = null;
  #fresh = true;
  #tabStop = false;
  #words = document.createTextNode("");
  // The part of the text that is held.
  #from = 0;
  #to = 0;
  // An open text follows its end until its reader scrolls up.
  #follows = false;

  constructor(column) {
    this.sign = el("span", { class: "cell-sign", "aria-hidden": "true" });
    this.name = el("span", { class: "cell-id" });
    this.state = el("span", { class: "cell-state" });
    this.tokens = el("span", { class: "cell-tokens" });
    this.head = el("div", { class: "cell-head" }, this.sign, this.name, this.state, this.tokens);
    this.prompt = el("p", { class: "cell-prompt", hidden: true });
    this.text = el("div", { class: "cell-text" }, el("div", {}, this.#words));
    this.error = el("p", { class: "cell-error", hidden: true });
    this.facts = el("p", { class: "cell-facts", hidden: true });
    const attributes = { class: "cell", role: "gridcell", tabindex: "-1", "aria-colindex": String(column + 1) };
    this.node = el("div", attributes, this.head, this.prompt, this.text, this.error, this.facts);
    this.node.addEventListener("scroll", () => {
      this.#follows = this.node.scrollTop + this.node.clientHeight >= this.node.scrollHeight - 4;
    });
  }

  /** Takes an item, or none; `prompts`: whether its prompt is told. */
  bind(item, { prompts }) {
    this.node.hidden = item === null;
    if (item === this.item) return;
    this.item = item;
    this.#version = -1;
    this.#status = "";
    this.#fresh = true;
    this.#from = this.#to = 0;
    this.#words.data = "";
    if (item === null) return;
    this.name.textContent = `#${item.id}`;
    this.prompt.hidden = !prompts;
  }

  /** Whether Tab reaches it. */
  set tabStop(value) {
    if (value !== this.#tabStop) this.node.tabIndex = value ? 0 : -1;
    this.#tabStop = value;
  }

  /**
   * Brings it up to date. `open`: why it is open, or null.
   * While `still`, text is only added: somebody is selecting.
   */
  refresh({ open, still }) {
    const { item } = this;
    if (open !== this.#open) this.#turn(open);
    if (item === null || (item.version === this.#version && !this.#fresh)) return;
    const held = still && !this.#fresh;
    this.#version = held ? -1 : item.version;
    this.#fresh = false;
    if (item.shown !== this.#status) this.#tellState(held);
    this.tokens.textContent = item.status === "pending" ? "" : t("batch.tokens", { n: number(item.tokens) });
    if (open !== null) this.#tellFacts();
    if (!this.prompt.hidden) this.#tellPrompt();
    this.#tellText(held);
    if (open !== null && this.#follows && !still) this.node.scrollTop = this.node.scrollHeight;
  }

  /** Says all words again, in another language. */
  relabel() {
    this.#version = -1;
    this.#status = "";
  }

  #turn(open) {
    const { node } = this;
    this.#version = -1;
    if (open === null) {
      delete node.dataset.open;
      node.removeAttribute("aria-expanded");
      node.scrollTop = 0;
    } else {
      node.dataset.open = open;
      node.setAttribute("aria-expanded", "true");
      if (this.#open === null) this.#follows = this.item.status === "running";
    }
    this.facts.hidden = open === null;
    this.#open = open;
  }

  #tellState(held) {
    const { item } = this;
    this.#status = held ? "" : item.shown;
    this.sign.textContent = SIGNS[item.shown];
    this.state.textContent = t(`batch.state.${item.shown}`);
    this.node.dataset.state = item.shown;
    // A text that grows shows its end, where something happens; whole ones show their beginnings, by which they are compared.
    if (!held) this.node.toggleAttribute("data-tail", item.status === "running");
    this.error.hidden = item.error === null;
    this.error.textContent = item.error === null ? "" : errorOf(item);
  }

  #tellPrompt() {
    const { prompt } = this.item;
    const text = this.#open === null ? prompt.slice(0, HELD_PROMPT) : prompt;
    if (this.prompt.textContent !== text) this.prompt.textContent = text;
  }

  #tellFacts() {
    const { seed, finishReason } = this.item;
    const cut = this.item.length > HELD_OPEN ? t("batch.fact.held", { n: number(HELD_OPEN), total: number(this.item.length) }) : "";
    const facts = [cut, seed === null ? "" : t("batch.fact.seed", { seed }), finishReason ? ending(finishReason) : ""];
    this.facts.textContent = facts.filter(Boolean).join(" · ");
  }

  #tellText(held) {
    const { item } = this;
    const all = item.length;
    const most = this.#open === null ? HELD : HELD_OPEN;
    if (held) return this.#hold(this.#from, this.#open !== null || this.node.hasAttribute("data-tail") ? Math.min(all, this.#from + 2 * most) : this.#to);
    if (item.status !== "running") return this.#hold(0, Math.min(all, most));
    if (this.#open !== null && all <= most) return this.#hold(0, all);
    // The start moves by leaps, since all lines break anew each time.
    this.#hold(all - this.#from > 2 * most ? all - most : this.#from, all);
  }

  /** Holds the text from one place to another. Edits leave a selection in it alone, where a new text would end it. */
  #hold(from, to) {
    const { item } = this;
    const words = this.#words;
    if (from >= this.#to || to <= this.#from) words.data = item.slice(from, to);
    else {
      if (from > this.#from) words.deleteData(0, from - this.#from);
      else if (from < this.#from) words.insertData(0, item.slice(from, this.#from));
      if (to > this.#to) words.appendData(item.slice(this.#to, to));
      else if (to < this.#to) words.deleteData(to - from, this.#to - to);
    }
    this.#from = from;
    this.#to = to;
  }
}

/** Why a text ended, in words where the reason is one of those that are known. */
function ending(reason) {
  const key = `batch.finish.${reason}`;
  return Object.hasOwn(words, key) ? t(key) : t("batch.finish.other", { reason });
}

function errorOf({ shown, error }) {
  return shown === "cut" ? t("batch.item.cut") : error.message || t("batch.item.error");
}
