/** One streamed chat answer: sent once, read to its end, and told apart by how it ended. No DOM. */

import { ApiError, send } from "./api.js";
import { events } from "./sse.js";

/**
 * How an answer ended. `end`: "done"; "length" (the token limit cut it); "stopped" (by the user); "cut" (the stream ended before its
 * end); "error". `skipped`: lines that could not be read. `message`, `code`, `retryAfter` (seconds): what the server said of an error.
 * @typedef {{end: string, skipped: number, message: string, code: string | null, retryAfter: number | null}} Outcome
 */

/**
 * Ask, and hand over the text piece by piece. Never throws, and never asks twice.
 * @param {object} body members of the call beside `stream`
 * @param {{signal: AbortSignal, onText: (piece: string) => void}} options
 * @returns {Promise<Outcome>}
 */
export async function ask(body, { signal, onText }) {
  const outcome = { end: "cut", skipped: 0, message: "", code: null, retryAfter: null };
  try {
    const response = await send("POST", "/v1/chat/completions", { ...body, stream: true }, { signal });
    if ((response.headers.get("content-type") ?? "").includes("json")) whole(await response.json(), outcome, onText);
    else await follow(response, outcome, onText);
  } catch (error) {
    failed(error, signal, outcome);
  }
  return outcome;
}

async function follow(response, outcome, onText) {
  let reason = null;
  for await (const data of events(response)) {
    if (data.trim() === "[DONE]") {
      outcome.end = reason === "length" ? "length" : "done";
      return;
    }
    const value = parsed(data);
    if (value?.error) {
      refused(value.error, outcome);
      return;
    }
    if (!value) outcome.skipped += 1;
    const choice = Array.isArray(value?.choices) ? value.choices[0] : null;
    const piece = choice?.delta?.content;
    if (typeof piece === "string" && piece !== "") onText(piece);
    reason = choice?.finish_reason ?? reason;
  }
}

/** A server that does not stream answers as a whole. */
function whole(value, outcome, onText) {
  if (value?.error) return refused(value.error, outcome);
  const choice = Array.isArray(value?.choices) ? value.choices[0] : null;
  const text = choice?.message?.content;
  if (typeof text === "string" && text !== "") onText(text);
  if (choice) outcome.end = choice.finish_reason === "length" ? "length" : "done";
}

/** The object that a line holds; null for anything else. */
function parsed(data) {
  try {
    const value = JSON.parse(data);
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

function refused(error, outcome) {
  outcome.end = "error";
  outcome.message = String(error.message ?? error);
  outcome.code = typeof error.code === "string" ? error.code : null;
}

function failed(error, signal, outcome) {
  if (signal.aborted) outcome.end = "stopped";
  else if (error instanceof ApiError) {
    outcome.end = "error";
    outcome.message = error.message;
    outcome.code = error.code ?? null;
    outcome.retryAfter = Number.isFinite(error.retryAfter) ? error.retryAfter : null;
  } else if (error instanceof SyntaxError) outcome.skipped += 1;
  // Anything else is a connection that broke in the middle: the answer stays what it is, cut.
}
