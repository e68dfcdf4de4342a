/** Keeps a batch over a reload of the page, in this tab of the browser only. */

import { base } from "./api.js";

// Pages behind one proxy share what their browser tab keeps.
const KEY = `albatross.batch:${base}`;

/**
 * Saves what is given. Where the texts are more than the browser takes, only the counts are kept.
 * @param {{form: Object, run: Object|null, counts: Object}} what
 */
export function save({ form, run, counts }) {
  for (const value of [{ form, run }, { form, run: null, counts: run && counts }, null]) {
    try {
      if (value === null) sessionStorage.removeItem(KEY);
      else sessionStorage.setItem(KEY, JSON.stringify(value));
      return;
    } catch {
      // Too large, or a browser that keeps nothing: then less, or nothing.
    }
  }
}

/** What was saved, `{form, run, counts}`, or null. */
export function restore() {
  try {
    const value = JSON.parse(sessionStorage.getItem(KEY));
    return value && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}
