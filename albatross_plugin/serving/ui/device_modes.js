/** The choice of a device mode: the modes that the server's plugins offer, their fields, or a strategy in the user's own words. */

import { clear, el } from "./dom.js";
import { field, tell } from "./fields.js";
import { language, onLanguage, t, words } from "./words.js";

/** The value of the last entry. An `id` of a mode is a name, and so never this. */
export const OTHER = "=other";

/** The strategy's text with `key=value` for each of `values`: in place of the key's old value, or at the end. */
export function compose(strategy, values) {
  const parts = strategy.split(/\s+/).filter(Boolean);
  for (const [key, value] of Object.entries(values)) {
    const at = parts.findIndex((part) => part.toLowerCase().startsWith(`${key.toLowerCase()}=`));
    if (at < 0) parts.push(`${key}=${value}`);
    else parts[at] = `${key}=${value}`;
  }
  return parts.join(" ");
}

export class DeviceModes {
  #modes = null;
  #chosen = "";
  #inputs = new Map();
  #select = el("select", { id: "device-mode", autocomplete: "off", on: { change: () => this.#choose(this.#select.value) } });
  #other = el("input", {
    id: "strategy-other",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "none",
    placeholder: "albatross device=cpu batch=16",
  });
  #text = el("output", { id: "strategy-text", class: "strategy", for: "device-mode" });
  #fields = el("div", { class: "mode-fields" });
  #note = el("p", { class: "help mode-note", "aria-hidden": "true" });
  node = el("div", { class: "stack" }, field(this.#select, "model.device"), this.#fields);

  constructor() {
    this.#select.after(this.#note);
    onLanguage(() => this.#draw());
    this.#draw();
  }

  /** Takes the modes of a `/status` answer. What is chosen and typed stays, unless it is no longer on offer. */
  offer(modes) {
    const usable = (Array.isArray(modes) ? modes : []).filter((mode) => mode?.id && typeof mode.strategy === "string");
    if (JSON.stringify(usable) === JSON.stringify(this.#modes)) return;
    this.#modes = usable;
    if (this.#chosen !== OTHER && !usable.some((mode) => mode.id === this.#chosen)) this.#choose("");
    this.#draw();
  }

  /** What is wrong, as inputs with a message each; shows that beside them too. */
  problems({ needed }) {
    const found = new Map();
    if (this.#chosen === "" && needed) found.set(this.#select, t("model.device.missing"));
    if (this.#chosen === OTHER && needed && !this.#other.value.trim()) found.set(this.#other, t("model.other.missing"));
    for (const [input, { minimum, maximum }] of this.#inputs) {
      const value = input.valueAsNumber;
      const fits = Number.isInteger(value) && value >= (minimum ?? -Infinity) && value <= (maximum ?? Infinity);
      if (!fits) found.set(input, bounds(minimum, maximum));
    }
    for (const input of [this.#select, this.#other, ...this.#inputs.keys()]) tell(input, found.get(input) ?? "");
    return found;
  }

  /** The text for `/switch-model`; "" where none is chosen. */
  strategy() {
    if (this.#chosen === OTHER) return this.#other.value.trim();
    const mode = this.#mode();
    if (!mode) return "";
    const values = {};
    for (const [input, { key }] of this.#inputs) values[key] = input.value === "" ? "?" : String(input.valueAsNumber);
    return compose(mode.strategy, values);
  }

  #mode() {
    return this.#modes?.find((mode) => mode.id === this.#chosen);
  }

  #choose(value) {
    this.#chosen = value;
    tell(this.#select, "");
    this.#inputs.clear();
    clear(this.#fields);
    this.#annotate();
    const mode = this.#mode();
    if (mode) {
      const numbers = (mode.fields ?? []).filter((each) => each?.key && each.type === "integer");
      this.#fields.append(el("div", { class: "pair" }, ...numbers.map((each) => this.#number(each))));
      this.#fields.append(el("p", { class: "field" }, el("span", { class: "label", "data-t": "model.strategy" }), this.#text));
      this.#rewrite();
    } else if (value === OTHER) {
      this.#fields.append(field(this.#other, "model.other", "model.other.help"));
      tell(this.#other, "");
    }
  }

  #number(wanted) {
    const known = Object.hasOwn(words, `mode.${wanted.key}`);
    const { key, minimum, maximum } = wanted;
    const input = el("input", { id: `field-${key}`, type: "number", inputmode: "numeric", step: 1, min: minimum, max: maximum, autocomplete: "off", value: wanted.default });
    input.addEventListener("input", () => this.#rewrite());
    this.#inputs.set(input, wanted);
    return field(input, known ? `mode.${key}` : null, known ? `mode.${key}.help` : null, { label: key, values: { minimum, maximum } });
  }

  #rewrite() {
    this.#text.textContent = this.strategy();
  }

  #draw() {
    const modes = this.#modes ?? [];
    const entries = [
      ["", t("model.device.choose")],
      ...modes.map((mode) => [mode.id, name(mode)]),
      [OTHER, t("model.device.other")],
    ];
    clear(this.#select).append(...entries.map(([value, text]) => el("option", { value, text })));
    // Nothing is chosen for the user: the fast mode takes a whole card, and only some models.
    this.#select.value = this.#chosen;
    this.#annotate();
  }

  #annotate() {
    const mode = this.#mode();
    this.#note.textContent = mode ? name(mode) : "";
  }
}

function name(mode) {
  return mode.labels?.[language()] ?? mode.labels?.en ?? mode.id;
}

function bounds(minimum, maximum) {
  return t("model.number", { minimum: minimum ?? "-∞", maximum: maximum ?? "∞" });
}
