/** A labelled input with its help and with what is wrong with it. */

import { el } from "./dom.js";

/**
 * Puts a label before an input and help and problem behind it. The input needs an id.
 * @param {HTMLElement} input
 * @param {string|null} label key of the label's words; null where `label` of the last argument is the text
 * @param {string|null} [help] key of the help's words
 * @param {Object} [more] `label`: text in place of a key; `values`: for both texts
 */
export function field(input, label, help = null, { label: text = "", values = {} } = {}) {
  const id = input.id;
  const told = JSON.stringify(values);
  const described = [help ? `${id}-help` : "", `${id}-problem`].filter(Boolean).join(" ");
  input.setAttribute("aria-describedby", described);
  input.addEventListener("input", () => tell(input, ""));
  return el(
    "div",
    { class: "field" },
    el("label", { for: id, "data-t": label, "data-t-values": told, text: label ? null : text }),
    input,
    el("p", { class: "problem", id: `${id}-problem` }),
    help ? el("p", { class: "help", id: `${id}-help`, "data-t": help, "data-t-values": told }) : null,
  );
}

/** Says what is wrong with an input; "" says that nothing is. */
export function tell(input, problem) {
  const place = input.parentElement?.querySelector(".problem");
  if (place) place.textContent = problem;
  if (problem) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
}
