/** The form of the tab Batch: prompts, count and sampling, checked before anything is sent. */

import { Field } from "./batch_field.js";
import { BadLine, linesOfFile, MAX_ITEMS, promptsOf, unescaped } from "./batch_prompts.js";
import { el } from "./dom.js";
import { number } from "./numbers.js";

const COUNT = 32;
const MAX_BYTES = 16 * 1024 * 1024;
// Name, least and greatest value, whole or not, and the step of the arrows.
const SAMPLING = [
  ["max_tokens", 1, 10_000_000, true, 1],
  ["temperature", 0, 100, false, 0.1],
  ["top_p", 0, Infinity, false, 0.05],
  ["top_k", 0, Infinity, true, 1],
  ["presence_penalty", -100, 100, false, 0.1],
  ["frequency_penalty", -100, 100, false, 0.1],
  ["penalty_decay", 0, 1, false, 0.001],
  ["seed", -Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER - MAX_ITEMS, true, 1],
];

export class BatchForm {
  #fields = new Map();
  #counts = { one: String(COUNT), list: "1" };
  #mode = "one";

  /** @param {{onSubmit: function(), actions: HTMLElement}} settings `actions`: the buttons below */
  constructor({ onSubmit, actions }) {
    this.node = el("form", { class: "batch-form card", novalidate: true, "data-t-label": "batch.form" });
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      onSubmit();
    });
    this.modes = ["one", "list"].map((mode) => el("input", { type: "radio", name: "batch-mode", value: mode, id: `batch-mode-${mode}`, checked: mode === "one", on: { change: () => this.#choose(mode) } }));
    this.one = this.#add("prompt", el("textarea", { rows: "6" }));
    this.list = this.#add("list", el("textarea", { rows: "9", spellcheck: "false", wrap: "off" }), "batch.list.help");
    this.count = this.#add("count", el("input", { type: "number", min: "1", max: String(MAX_ITEMS), step: "1", value: COUNT }));
    this.file = el("input", { type: "file", class: "sr-only", id: "batch-file", accept: ".txt,.jsonl,.ndjson", on: { change: () => this.#load() } });
    this.loader = el("div", { class: "batch-file" }, this.file, el("label", { for: "batch-file", class: "button", "data-t": "batch.file" }));
    this.list.node.append(this.loader);
    this.list.input.addEventListener("input", () => this.#tellCount());
    this.node.append(this.#modeSwitch(), this.one.node, this.list.node, this.count.node, this.#sampling(), actions);
    this.#choose("one");
  }

  #add(name, input, help = null) {
    const field = new Field(name, input, help);
    this.#fields.set(name, field);
    return field;
  }

  #modeSwitch() {
    const options = this.modes.flatMap((input) => [input, el("label", { for: input.id, "data-t": `batch.mode.${input.value}` })]);
    return el("fieldset", { class: "segments" }, el("legend", { class: "sr-only", "data-t": "batch.mode" }), options);
  }

  #sampling() {
    const numbers = SAMPLING.map(([name, least, most, , step]) => {
      const input = el("input", { type: "number", min: String(least), max: Number.isFinite(most) ? String(most) : null, step: String(step), inputmode: "decimal", "data-t-placeholder": "batch.default" });
      return this.#add(name, input).node;
    });
    this.stop = this.#add("stop", el("textarea", { rows: "2", spellcheck: "false" }), "batch.stop.help");
    this.ignoreEos = el("input", { type: "checkbox", id: "batch-ignore-eos" });
    const check = el("div", { class: "check" }, this.ignoreEos, el("label", { for: "batch-ignore-eos", "data-t": "batch.ignore_eos" }));
    this.details = el(
      "details",
      { class: "batch-sampling" },
      el("summary", { "data-t": "batch.sampling" }),
      el("p", { class: "help", "data-t": "batch.sampling.help" }),
      el("div", { class: "batch-numbers" }, numbers),
      this.stop.node,
      check,
    );
    return this.details;
  }

  #choose(mode) {
    this.#counts[this.#mode] = this.count.input.value;
    this.#mode = mode;
    for (const input of this.modes) input.checked = input.value === mode;
    this.count.input.value = this.#counts[mode];
    this.count.rename(mode === "one" ? "batch.count" : "batch.each");
    this.one.node.hidden = mode !== "one";
    this.list.node.hidden = mode !== "list";
    this.count.blame(null);
    this.#tellCount();
  }

  async #load() {
    const [file] = this.file.files;
    if (!file) return;
    try {
      if (file.size > MAX_BYTES) throw new RangeError();
      const lines = linesOfFile(file.name, await file.text());
      this.list.input.value = lines.join("\n");
      this.list.blame(null);
      this.#tellCount();
      if (lines.length === 0) this.list.blame({ key: "batch.problem.empty-file", values: { name: file.name } });
    } catch (error) {
      if (error instanceof BadLine) this.list.blame({ key: `batch.problem.line.${error.reason}`, values: { name: file.name, line: error.line } });
      else this.list.blame({ key: error instanceof RangeError ? "batch.problem.large" : "batch.problem.unreadable", values: { name: file.name } });
    }
    // The same file can be chosen again, once it is mended.
    this.file.value = "";
  }

  #tellCount() {
    this.list.rename("batch.list", { n: number(promptsOf(this.list.input.value).length) });
  }

  /** Words that do not change by themselves with the language. */
  retell() {
    this.#tellCount();
    for (const field of this.#fields.values()) field.tell();
  }

  /**
   * What the form asks for, `{prompts, count, options}`; or null, with what is wrong told at the fields and the first of them focused.
   */
  read() {
    for (const field of this.#fields.values()) field.blame(null);
    const options = this.#options();
    const count = this.#number("count", 1, MAX_ITEMS, true);
    if (count === null && !this.count.blamed) this.count.blame({ key: "batch.problem.count", values: { most: number(MAX_ITEMS) } });
    const prompts = this.#prompts(count);
    const wrong = [...this.#fields.values()].find((field) => field.blamed);
    if (!wrong) return { prompts, count, options };
    this.#focus(wrong);
    return null;
  }

  /** The server refused one parameter: told at its field. False: there is no such field. */
  blame(param, text) {
    const name = param === "prompt" ? (this.#mode === "one" ? "prompt" : "list") : param;
    const field = this.#fields.get(name);
    if (!field) return false;
    field.blame({ text });
    this.#focus(field);
    return true;
  }

  #focus(field) {
    if (this.details.contains(field.node)) this.details.open = true;
    field.input.focus();
  }

  #prompts(count) {
    const field = this.#mode === "one" ? this.one : this.list;
    const text = field.input.value;
    const prompts = this.#mode === "list" ? promptsOf(text) : text.trim() === "" ? [] : [text];
    if (prompts.length === 0) field.blame({ key: this.#mode === "one" ? "batch.problem.prompt" : "batch.problem.list" });
    else if (prompts.length * count > MAX_ITEMS) {
      const values = { n: number(prompts.length), times: number(count), most: number(MAX_ITEMS) };
      field.blame({ key: count === 1 ? "batch.problem.many" : "batch.problem.product", values });
    } else if (new Blob(prompts).size > MAX_BYTES * 0.9) field.blame({ key: "batch.problem.large" });
    return prompts;
  }

  #options() {
    const options = {};
    for (const [name, least, most, whole] of SAMPLING) {
      const value = this.#number(name, least, most, whole);
      if (value !== null) options[name] = value;
    }
    const stops = this.stop.input.value.split("\n").filter((line) => line !== "").map(unescaped);
    if (stops.length) options.stop = stops;
    if (this.ignoreEos.checked) options.ignore_eos = true;
    return options;
  }

  #number(name, least, most, whole) {
    const field = this.#fields.get(name);
    const { input } = field;
    if (input.value.trim() === "" && !input.validity.badInput) return null;
    const value = Number(input.value);
    const fits = !input.validity.badInput && Number.isFinite(value) && value >= least && value <= most && (!whole || Number.isInteger(value));
    if (fits) return value;
    const key = Number.isFinite(most) && Math.abs(most) < Number.MAX_SAFE_INTEGER ? "batch.problem.range" : least === 0 ? "batch.problem.least" : "batch.problem.number";
    field.blame({ key: whole && key !== "batch.problem.number" ? `${key}.whole` : key, values: { least: number(least), most: number(most) } });
    return null;
  }

  /** All that was typed, for a later `fill`. */
  values() {
    const typed = Object.fromEntries(Array.from(this.#fields, ([name, field]) => [name, field.input.value]));
    return { mode: this.#mode, counts: { ...this.#counts, [this.#mode]: typed.count }, typed, ignoreEos: this.ignoreEos.checked, open: this.details.open };
  }

  fill({ mode, counts, typed, ignoreEos, open }) {
    for (const [name, field] of this.#fields) field.input.value = typed?.[name] ?? "";
    this.ignoreEos.checked = Boolean(ignoreEos);
    this.details.open = Boolean(open);
    Object.assign(this.#counts, counts);
    this.count.input.value = this.#counts[this.#mode];
    this.#choose(mode === "list" ? "list" : "one");
  }
}
