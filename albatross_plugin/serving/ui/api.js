/**
 * Calls of the server, relative to where the page itself lies. The page sends nothing twice; a browser may repeat a call by itself whose
 * connection breaks before the answer begins.
 */

import { inTurn } from "./turns.js";
import { t } from "./words.js";

/** What stands in front of the API's paths: empty, or the prefix of a proxy. */
export const base = location.pathname.replace(/\/albatross\/ui\/?$/, "");
const KEY = "albatross.key";
const unauthorized = new Set();
let memory = "";

/** An answer that is an error, or none at all (`status` 0, `code` connection, timeout or redirected). */
export class ApiError extends Error {
  constructor(status, message, { code = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = param;
    /** Seconds, or null. */
    this.retryAfter = retryAfter;
  }
}

/** The API key in use, "" for none. */
export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

/** Uses another API key from now on; "" forgets it. */
export function setKey(value) {
  memory = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Kept in memory alone, where the browser has no store.
  }
}

/** Calls back with the ApiError of each answer that asks for a key. */
export function onUnauthorized(callback) {
  unauthorized.add(callback);
}

/** The JSON of a GET, in its turn. Throws ApiError, or AbortError where `signal` ended it. */
export function getJson(path, { signal } = {}) {
  return short("GET", path, { signal }, (response) => response.json());
}

/** A DELETE, before all GETs that wait for their turn. Throws as `getJson`. */
export async function remove(path, { signal } = {}) {
  // What was read to its end leaves its connection to the next one.
  await short("DELETE", path, { signal, urgent: true }, (response) => response.text());
}

function short(method, path, { signal, urgent }, read) {
  const work = async (limited) => {
    let status = 0;
    try {
      const response = await send(method, path, undefined, { signal: limited });
      ({ status } = response);
      return await read(response);
    } catch (error) {
      if (error instanceof ApiError || signal?.aborted) throw error;
      if (limited.aborted) throw new ApiError(0, t("error.timeout"), { code: "timeout" });
      if (error instanceof SyntaxError) throw new ApiError(status, t("error.garbled"), { code: "garbled" });
      throw lost();
    }
  };
  return inTurn(work, { urgent, signal });
}

/**
 * One call, at once: short ones are `getJson` and `remove`, which take turns. `body` is sent as JSON unless it is undefined.
 * @returns {Promise<Response>} of a status from 200 to 299; all others, 304 too, throw ApiError
 */
export async function send(method, path, body, { signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key()) headers.Authorization = `Bearer ${key()}`;
  let response;
  try {
    // A redirect that is followed would send the body a second time.
    response = await fetch(base + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      redirect: "manual",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw lost();
  }
  if (response.ok) return response;
  throw await refusal(response);
}

/**
 * Asks again and again, one request at a time, not while the page is hidden.
 * @param {string} path
 * @param {number|function(): number} everyMs pause between an answer and the next question
 * @param {function(Object|null, ApiError|null)} callback gets each answer, or why there is none
 * @returns {function()} ends it; its member `now()` asks at once
 */
export function poll(path, everyMs, callback) {
  let stopped = false;
  let running = false;
  let again = false;
  let timer = 0;

  async function ask() {
    clearTimeout(timer);
    if (stopped || document.hidden) return;
    if (running) {
      again = true;
      return;
    }
    running = true;
    const [answer, error] = await once(path);
    running = false;
    if (stopped) return;
    try {
      callback(answer, error);
    } finally {
      timer = setTimeout(ask, again ? 0 : typeof everyMs === "function" ? everyMs() : everyMs);
      again = false;
    }
  }

  function stop() {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", ask);
  }

  stop.now = ask;
  document.addEventListener("visibilitychange", ask);
  ask();
  return stop;
}

async function once(path) {
  try {
    return [await getJson(path), null];
  } catch (error) {
    return [null, error instanceof ApiError ? error : lost()];
  }
}

function lost() {
  return new ApiError(0, t("error.connection"), { code: "connection" });
}

async function refusal(response) {
  if (response.type === "opaqueredirect") return new ApiError(0, t("error.redirected"), { code: "redirected" });
  const text = await response.text().catch(() => "");
  const said = reason(text);
  const message = said.message || t("error.status", { status: response.status });
  const error = new ApiError(response.status, message, { ...said, retryAfter: seconds(response.headers.get("retry-after")) });
  if (error.status === 401) for (const callback of unauthorized) callback(error);
  return error;
}

/** What an error's body says: OpenAI's shape, or FastAPI's `detail` as a text or as a list. */
function reason(text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    return {};
  }
  const { message, code, param } = body?.error ?? {};
  if (typeof message === "string") return { message, code, param };
  if (typeof body?.error === "string") return { message: body.error };
  const detail = body?.detail;
  if (typeof detail === "string") return { message: detail };
  if (!Array.isArray(detail)) return {};
  return { message: detail.map(fault).filter(Boolean).join("; ") };
}

/** One entry of FastAPI's list: where, and what. */
function fault(entry) {
  const where = Array.isArray(entry?.loc) ? entry.loc.slice(1).filter((each) => ["string", "number"].includes(typeof each)).join(".") : "";
  return [where, typeof entry?.msg === "string" ? entry.msg : ""].filter(Boolean).join(": ");
}

function seconds(value) {
  if (value === null) return null;
  const number = /^\d+$/.test(value.trim()) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(number) ? Math.max(0, number) : null;
}
