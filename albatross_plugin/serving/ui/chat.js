/** The tab Chat: a conversation with the loaded model, one answer at a time. */

import { ask } from "./chat_answer.js";
import { keepTurns, keptTurns, messages, turn as newTurn } from "./chat_history.js";
import { Log } from "./chat_log.js";
import { Settings } from "./chat_settings.js";
import { TurnView } from "./chat_turn.js";
import { announce, el } from "./dom.js";
import { t, translate } from "./words.js";

/** What is said before a conversation in which nobody would answer. */
const UNANSWERED = { offline: "chat.no_model", loading: "chat.loading", down: "batch.reason.down" };

export function mount(section, app) {
  const chat = new Chat(section);
  app.onStatus(({ state }) => chat.tellModel(state));
}

class Chat {
  /** @type {TurnView[]} */
  #views = [];
  /** @type {AbortController | null} */
  #running = null;

  constructor(section) {
    this.settings = new Settings();
    this.empty = el("p", { class: "muted chat-empty", "data-t": "chat.empty", "data-t-link": "#model" });
    this.log = new Log(this.empty);
    this.input = el("textarea", {
      id: "chat-input",
      rows: "3",
      "data-t-placeholder": "chat.placeholder",
      on: { keydown: (event) => this.#key(event), input: () => this.#show() },
    });
    this.button = el("button", { type: "button", class: "primary", on: { click: (event) => this.#press(event) } });
    this.clear = el("button", { type: "button", class: "plain", "data-t": "chat.clear", on: { click: () => this.#clear() } });
    const label = el("label", { class: "sr-only", for: "chat-input", "data-t": "chat.message" });
    const buttons = el("div", { class: "chat-buttons" }, this.button, this.clear);
    const compose = el("div", { class: "chat-compose" }, label, this.input, buttons);
    this.box = el("div", { class: "chat card" }, this.settings.node, this.log.node, compose);
    section.append(this.box);
    for (const each of keptTurns()) this.#append(each);
    this.#show();
    // In the next frame: the box's new height changes what is observed, which browsers report as an error within the same one.
    const frame = new ResizeObserver(() => requestAnimationFrame(() => this.#fit()));
    for (const part of document.querySelectorAll("body > *")) frame.observe(part);
    addEventListener("pagehide", () => this.#keep());
  }

  /** The state of the model, as the frame knows it. */
  tellModel(state) {
    const key = UNANSWERED[state] ?? "chat.empty";
    // Told anew each second, a link would be gone from under the finger.
    if (this.empty.dataset.t === key) return;
    this.empty.dataset.t = key;
    translate(this.empty);
  }

  #key(event) {
    // Enter also ends the choice of a Chinese or Japanese word; Safari tells that by the key's code alone.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    if (this.#running) announce(t("chat.busy"));
    else if (!event.repeat) this.#submit();
  }

  #press(event) {
    // The second half of a double click on Send would stop the answer.
    if (event.detail > 1) return;
    if (this.#running) this.#running.abort();
    else this.#submit();
  }

  #submit() {
    // Blanks at the start may be code's; those at the end mislead a model.
    const question = this.input.value.replace(/^\n+/, "").trimEnd();
    if (question === "") return this.input.focus();
    if (this.#ask(question)) this.input.value = "";
    this.#show();
  }

  #retry(view) {
    if (this.#running || view !== this.#views.at(-1)) return;
    const body = this.settings.read();
    if (!body) return;
    this.#views.pop();
    view.remove();
    this.#ask(view.turn.question);
    this.input.focus();
  }

  /** Asks once; false where the settings are wrong, and nothing was sent. */
  #ask(question) {
    const body = this.settings.read();
    if (!body) return false;
    const turns = this.#views.map((each) => each.turn);
    body.messages = messages(turns, question, this.settings.systemMessage);
    this.#views.at(-1)?.settle({ last: false });
    const view = this.#append(newTurn(question));
    this.log.reveal();
    this.#keep();
    this.#run(view, body);
    return true;
  }

  async #run(view, body) {
    const controller = new AbortController();
    this.#running = controller;
    this.#show();
    const outcome = await ask(body, { signal: controller.signal, onText: (piece) => view.add(piece) });
    Object.assign(view.turn, outcome);
    // The conversation may have been cleared, and another answer begun.
    if (this.#running === controller) this.#running = null;
    if (!this.#views.includes(view)) return;
    view.settle({ last: true });
    announce(view.turn.end === "done" ? t("chat.finished") : view.note.textContent);
    this.#keep();
    this.#show();
  }

  #append(turn) {
    this.#views.at(-1)?.settle({ last: false });
    const view = new TurnView(turn, this.log, { onRetry: () => this.#retry(view) });
    this.#views.push(view);
    this.log.node.append(view.question, view.answer);
    return view;
  }

  #clear() {
    this.#running?.abort();
    this.#running = null;
    for (const view of this.#views) view.remove();
    this.#views = [];
    this.#keep();
    this.#show();
    this.input.focus();
  }

  /** The conversation takes the height that the frame above leaves, whatever its language and width make of it. */
  #fit() {
    const { top, height } = this.box.getBoundingClientRect();
    const above = top + scrollY;
    if (height > 0) this.box.style.setProperty("--above", `${Math.round(above)}px`);
  }

  #keep() {
    keepTurns(this.#views.map((each) => each.turn));
  }

  #show() {
    const running = this.#running !== null;
    const key = running ? "chat.stop" : "chat.send";
    if (this.button.dataset.t !== key) {
      this.button.dataset.t = key;
      this.button.textContent = t(key);
      this.button.className = running ? "danger" : "primary";
    }
    this.button.disabled = !running && this.input.value.trim() === "";
    this.empty.hidden = this.#views.length > 0;
    this.clear.disabled = this.#views.length === 0;
  }
}
