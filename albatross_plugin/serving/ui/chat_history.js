/** The turns of a conversation: what of them is sent again, and their copy in this tab's storage. No DOM. */

import { base } from "./api.js";

/** Characters of all turns that are kept over a reload; browsers give a site some millions. */
const KEPT_CHARACTERS = 1_000_000;
const KEPT_TURNS = 200;
const ENDS = ["done", "length", "stopped", "cut", "error"];

/**
 * A question and its answer. `end` is null while the answer runs, else as in chat_answer.js.
 * @typedef {{question: string, answer: string, end: string | null, skipped: number, message: string, code: string | null,
 *   retryAfter: number | null}} Turn
 */

/** @param {string} question @returns {Turn} */
export function turn(question) {
  return { question, answer: "", end: null, skipped: 0, message: "", code: null, retryAfter: null };
}

/** Whether a turn came to nothing. Sent along, a question that was refused would have every later call refused as well. */
export function lost(each) {
  return each.answer === "";
}

/**
 * What the model is told before and with `question`.
 * @param {Turn[]} turns those before it
 * @param {string} question
 * @param {string} system "" for none
 */
export function messages(turns, question, system) {
  const before = turns.filter((each) => !lost(each)).flatMap((each) => [
    { role: "user", content: each.question },
    { role: "assistant", content: each.answer },
  ]);
  return [...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: question }];
}

const key = (name) => `albatross.${name}:${base}`;

/** Keep the newest turns, as many as fit. A browser without storage keeps none. @param {Turn[]} turns */
export function keepTurns(turns) {
  let room = KEPT_CHARACTERS;
  const kept = [];
  for (const each of turns.slice(-KEPT_TURNS).reverse()) {
    room -= each.question.length + each.answer.length + each.message.length;
    if (room < 0) break;
    kept.unshift(each);
  }
  keep("chat", kept);
}

/** The turns that were kept; one that ran when the page was left is cut. @returns {Turn[]} */
export function keptTurns() {
  const value = kept("chat");
  if (!Array.isArray(value)) return [];
  return value
    .filter((each) => typeof each?.question === "string" && typeof each.answer === "string")
    .map((each) => ({
      ...turn(each.question),
      answer: each.answer,
      end: ENDS.includes(each.end) ? each.end : "cut",
      skipped: Number.isInteger(each.skipped) ? each.skipped : 0,
      message: typeof each.message === "string" ? each.message : "",
      code: typeof each.code === "string" ? each.code : null,
    }));
}

/** @param {string} name @param {unknown} value JSON-able */
export function keep(name, value) {
  try {
    sessionStorage.setItem(key(name), JSON.stringify(value));
  } catch {
    // Switched off or full: the conversation lives as long as the page.
  }
}

/** @param {string} name @returns {any} null where nothing is kept */
export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(key(name)) ?? "null");
  } catch {
    return null;
  }
}
