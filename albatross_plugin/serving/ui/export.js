/** Taking results out of the page: the clipboard and JSONL files. */

import { el } from "./dom.js";

/** Between two texts that are copied together. */
const BETWEEN = "\n\n---\n\n";

/** The texts of items, ready to be pasted. */
export function textsOf(items) {
  return items.map((item) => item.text).join(BETWEEN);
}

/**
 * Copies a text. Without a secure context (plain HTTP from another machine) browsers give no clipboard to pages, so the old way is
 * kept beside the new one.
 * @returns {Promise<boolean>} whether it worked
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = el("textarea", { class: "sr-only", readonly: true, "aria-hidden": "true", value: text });
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus({ preventScroll: true });
  }
}

/** One line of JSON for each item, in order. */
export function jsonlOf(items) {
  return items.map((item) => {
    const { id, prompt, text, status, finishReason, tokens, seed, error } = item;
    return `${JSON.stringify({ id, prompt, text, status, finish_reason: finishReason, tokens, seed, error })}\n`;
  });
}

/** Gives items to the browser as a file to save. */
export function download(items, name) {
  const address = URL.createObjectURL(new Blob(jsonlOf(items), { type: "application/x-ndjson" }));
  const link = el("a", { href: address, download: name, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
