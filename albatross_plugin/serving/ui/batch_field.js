/** One input of the batch's form, and what is wrong with it in the language that is spoken. */

import { field, tell } from "./fields.js";
import { t } from "./words.js";

export class Field {
  #problem = null;

  constructor(name, input, help = null) {
    this.input = input;
    input.id = `batch-${name}`;
    this.node = field(input, `batch.${name}`, help);
    this.label = this.node.querySelector("label");
    input.addEventListener("input", () => this.blame(null));
  }

  /** Tells what is wrong, `{key, values}` or `{text}`, or with null that nothing is. */
  blame(problem) {
    this.#problem = problem;
    this.tell();
  }

  tell() {
    const problem = this.#problem;
    tell(this.input, problem === null ? "" : (problem.text ?? t(problem.key, problem.values)));
  }

  get blamed() {
    return this.#problem !== null;
  }

  /** Other words for the label. */
  rename(key, values = {}) {
    this.label.dataset.t = key;
    this.label.dataset.tValues = JSON.stringify(values);
    this.label.textContent = t(key, values);
  }
}
