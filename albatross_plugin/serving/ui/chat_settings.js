/** The settings of the chat. A field that is empty leaves its member out of the call, and the choice to the server. */

import { keep, kept } from "./chat_history.js";
import { el } from "./dom.js";
import { translate } from "./words.js";

/** Bounds as RWKV-Runner and the host that comes along have them. */
const FIELDS = {
  temperature: { min: 0, max: 3, step: "0.1" },
  top_p: { min: 0, max: 1, step: "0.05" },
  max_tokens: { min: 1, max: 102400, step: "1", whole: true },
  presence_penalty: { min: -2, max: 2, step: "0.1" },
  frequency_penalty: { min: -2, max: 2, step: "0.1" },
};

export class Settings {
  constructor() {
    this.inputs = Object.fromEntries(Object.entries(FIELDS).map(([name, bounds]) => [name, this.#input(name, bounds)]));
    this.problems = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, el("p", { class: "problem", id: `chat-${name}-problem` })]));
    this.system = el("textarea", { id: "chat-system", rows: "2" });
    const numbers = Object.keys(FIELDS).map((name) => field(name, this.inputs[name], this.problems[name]));
    this.node = el(
      "details",
      { class: "chat-settings" },
      el("summary", { "data-t": "chat.settings" }),
      el("p", { class: "help", "data-t": "chat.settings.hint" }),
      el("div", { class: "chat-fields" }, numbers),
      field("system", this.system),
    );
    this.#restore();
    this.node.addEventListener("change", () => this.#keep());
  }

  /** The members of a call; null where a field holds what no server takes. The first such field is shown then. */
  read() {
    const body = {};
    let wrong = null;
    for (const [name, bounds] of Object.entries(FIELDS)) {
      const value = this.#value(name, bounds);
      if (value === undefined) wrong ??= this.inputs[name];
      else if (value !== null) body[name] = value;
    }
    if (!wrong) return body;
    this.node.open = true;
    wrong.focus();
    return null;
  }

  get systemMessage() {
    return this.system.value.trim();
  }

  #input(name, { min, max, step }) {
    return el("input", {
      id: `chat-${name}`,
      type: "number",
      inputmode: "decimal",
      min: String(min),
      max: String(max),
      step,
      autocomplete: "off",
      "data-t-placeholder": "chat.settings.default",
      "aria-describedby": `chat-${name}-problem`,
      on: { input: () => this.#value(name, FIELDS[name]) },
    });
  }

  /** A number, null for an empty field, undefined for a wrong one, which is told beside it. */
  #value(name, { min, max, whole }) {
    const input = this.inputs[name];
    const number = input.valueAsNumber;
    const empty = input.value === "" && !input.validity.badInput;
    const right = empty || (number >= min && number <= max && (!whole || Number.isInteger(number)));
    input.setAttribute("aria-invalid", String(!right));
    const problem = this.problems[name];
    problem.dataset.t = right ? "" : whole ? "chat.settings.whole" : "chat.settings.number";
    problem.dataset.tValues = JSON.stringify({ min, max });
    if (right) problem.textContent = "";
    translate(problem);
    return right ? (empty ? null : number) : undefined;
  }

  #keep() {
    const values = Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]));
    keep("chat-settings", { ...values, system: this.system.value });
  }

  #restore() {
    const values = kept("chat-settings") ?? {};
    for (const [name, input] of Object.entries({ ...this.inputs, system: this.system })) {
      if (typeof values[name] === "string") input.value = values[name];
      if (input.value) this.node.open = true;
    }
  }
}

function field(name, input, ...more) {
  return el("div", { class: "field" }, el("label", { for: input.id, "data-t": `chat.settings.${name}` }), input, more);
}
