/** Making nodes. Text of any origin becomes a text node; nothing here reads markup. */

import { translate } from "./words.js";

/**
 * A new element.
 * @param {string} tag
 * @param {Object} [attributes] `class`, `text`, `on: {click: listener}`, `value`, `data-t` and the like; true means an
 *   attribute without a value, and false, null and undefined mean none.
 * @param {...(Node|string|null|Array)} children
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name !== "value") node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  // A select takes its value once its options are there.
  if (attributes?.value !== undefined && attributes.value !== null) node.value = attributes.value;
  translate(node);
  return node;
}

/** Takes everything out of a node. */
export function clear(node) {
  node.replaceChildren();
  return node;
}

/** Says a text to those who use a screen reader. The same text twice is said twice. */
export function announce(text) {
  const region = document.getElementById("live");
  if (region) region.replaceChildren(el("p", { text }));
}
