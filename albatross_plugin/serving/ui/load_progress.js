/** How far a load is: the engine's bytes where it tells them, else only that something goes on. */

import { announce, el } from "./dom.js";
import { bytesOf } from "./numbers.js";
import { onLanguage, t } from "./words.js";

const TICK_MS = 500;

/** `0:07`, `12:30`, `1:02:03`. */
export function clock(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  if (parts[0] === 0) parts.shift();
  return parts.map((part, index) => (index ? String(part).padStart(2, "0") : String(part))).join(":");
}

export class LoadProgress {
  #began = 0;
  #timer = 0;
  #said = "";
  #engine = null;
  #bar = el("progress", { max: 1, "data-t-label": "progress.label" });
  #state = el("span", { class: "progress-state" });
  #amount = el("span", { class: "muted progress-amount" });
  #time = el("span", { class: "muted progress-time" });
  node = el(
    "div",
    { id: "load-progress", class: "load-progress", hidden: true },
    el("div", { class: "progress-line" }, this.#state, this.#amount, this.#time),
    this.#bar,
  );

  constructor() {
    onLanguage(() => this.#draw());
  }

  /** Milliseconds since `begin`. */
  get passed() {
    return performance.now() - this.#began;
  }

  /** A load of this page begins. */
  begin() {
    this.#began = performance.now();
    this.#show();
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#tick();
  }

  /** A load that somebody else started: nobody here knows since when. */
  watch() {
    if (this.#timer || !this.node.hidden) return;
    this.#time.textContent = "";
    this.#show();
  }

  /** It is over, however it went. */
  end() {
    clearInterval(this.#timer);
    this.#timer = 0;
    this.node.hidden = true;
  }

  /** The engine's part of a status, or null where there is none yet. */
  update(engine) {
    this.#engine = engine?.phase === "loading" ? engine : null;
    if (!this.node.hidden) this.#draw();
  }

  #show() {
    this.#said = "";
    this.#engine = null;
    this.node.hidden = false;
    this.#draw();
  }

  #tick() {
    this.#time.textContent = clock(this.passed);
  }

  #draw() {
    const { loaded_bytes: done = 0, total_bytes: total = 0 } = this.#engine ?? {};
    const reading = total > 0 && done < total;
    const state = reading ? "progress.reading" : total > 0 ? "progress.starting" : "progress.preparing";
    if (reading) this.#bar.value = done / total;
    else this.#bar.removeAttribute("value");
    this.#state.textContent = t(state);
    this.#amount.textContent = total > 0 ? bytesOf(done, total) : "";
    // Twice a second would be chatter; a change of what goes on is news.
    if (!this.node.hidden && this.#said !== state) announce(t(state));
    this.#said = state;
  }
}
