/** The page's words in three languages, and which of them is spoken. */

import batch from "./words_batch.js";
import shell from "./words_shell.js";
import tabs from "./words_tabs.js";

export const LANGUAGES = { en: "en", zh: "zh-CN", ja: "ja" };
export const words = { ...shell, ...tabs, ...batch };
const SAVED = "albatross.language";
const callbacks = new Set();
let current = saved() ?? preferred();

/** The language's code: en, zh or ja. */
export function language() {
  return current;
}

/** The words of a key in the language spoken, `{name}` replaced by `values.name`. */
export function t(key, values = {}) {
  const text = words[key]?.[current] ?? words[key]?.en ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Speaks another language from now on; nodes with `data-t` change in place, then the callbacks are called. */
export function setLanguage(code) {
  if (!Object.hasOwn(LANGUAGES, code)) return;
  current = code;
  try {
    localStorage.setItem(SAVED, code);
  } catch {
    // A browser that keeps nothing: the choice counts until the page is left.
  }
  retell();
  for (const callback of callbacks) callback(code);
}

/** Calls back after each change of the language. Returns what ends that. */
export function onLanguage(callback) {
  callbacks.add(callback);
  return () => callbacks.delete(callback);
}

/** Puts the page's own words in place, for a start. */
export function retell() {
  document.documentElement.lang = LANGUAGES[current];
  for (const node of document.querySelectorAll("[data-t], [data-t-title], [data-t-label], [data-t-placeholder]")) translate(node);
}

/**
 * Sets what `data-t`, `data-t-title`, `data-t-label` and `data-t-placeholder` of one node name; `data-t-values` is JSON. With
 * `data-t-link` the part of the text in [brackets] is a link to there.
 */
export function translate(node) {
  const { t: text, tTitle, tLabel, tPlaceholder, tValues, tLink } = node.dataset;
  const values = tValues ? JSON.parse(tValues) : {};
  if (text && tLink) node.replaceChildren(...linked(t(text, values), tLink));
  else if (text) node.textContent = t(text, values);
  if (tTitle) node.title = t(tTitle, values);
  if (tLabel) node.setAttribute("aria-label", t(tLabel, values));
  if (tPlaceholder) node.setAttribute("placeholder", t(tPlaceholder, values));
}

function linked(text, href) {
  const [before, inside, after] = text.split(/[[\]]/);
  if (inside === undefined) return [text];
  const link = document.createElement("a");
  link.href = href;
  link.textContent = inside;
  return [before, link, after];
}

function saved() {
  try {
    const code = localStorage.getItem(SAVED);
    return code !== null && Object.hasOwn(LANGUAGES, code) ? code : null;
  } catch {
    return null;
  }
}

function preferred() {
  const codes = (navigator.languages ?? []).map((each) => each.toLowerCase().split("-")[0]);
  return codes.find((code) => Object.hasOwn(LANGUAGES, code)) ?? "en";
}
