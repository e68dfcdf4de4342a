/** Which states are shown, and how many items each has. */

import { STATES } from "./batch_item.js";
import { el } from "./dom.js";
import { number } from "./numbers.js";

const CHOICES = ["all", ...STATES];

export class BatchFilter {
  chosen = "all";

  /** @param {function(string)} onChoose gets `all` or a state */
  constructor(onChoose) {
    this.counts = Object.fromEntries(CHOICES.map((name) => [name, el("span", { class: "segment-count", "data-none": true, text: "0" })]));
    this.inputs = CHOICES.map((name) => {
      const change = () => {
        this.chosen = name;
        onChoose(name);
      };
      return el("input", { type: "radio", name: "batch-filter", value: name, id: `batch-filter-${name}`, checked: name === "all", on: { change } });
    });
    const options = this.inputs.flatMap((input) => {
      const word = el("span", { "data-t": input.value === "all" ? "batch.all" : `batch.state.${input.value}` });
      return [input, el("label", { for: input.id, "data-state": input.value }, word, " ", this.counts[input.value])];
    });
    this.node = el("fieldset", { class: "segments batch-filter" }, el("legend", { class: "sr-only", "data-t": "batch.filter" }), options);
  }

  show(run) {
    for (const name of CHOICES) {
      const text = number(run === null ? 0 : name === "all" ? run.total : run.counts[name]);
      if (this.counts[name].textContent !== text) this.counts[name].textContent = text;
      // Colours are for what is there.
      this.counts[name].toggleAttribute("data-none", text === "0");
    }
  }

  choose(name) {
    this.chosen = name;
    for (const input of this.inputs) input.checked = input.value === name;
  }

  matches(item) {
    return this.chosen === "all" || item.status === this.chosen;
  }
}
