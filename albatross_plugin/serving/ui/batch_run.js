/** One batch: sent once, read to its end, and how each of its items stands. No DOM. */

import { ApiError, remove, send } from "./api.js";
import { Item, STATES } from "./batch_item.js";
import { events } from "./sse.js";

const BEGIN = "/albatross/batch/completions";
const STOP = "/albatross/batch/";
// After Stop the stream ends by itself; a server that does not get so far is left.
const GRACE_MS = 10000;
// A browser that leaves the page ends the stream first, up to so long before it says that it leaves.
const LEAVING_MS = 3000;
// Events are taken in turns of this length, so that the page can paint and react in between.
const TURN_MS = 8;
const CUT = { message: "the stream ended before this item did", code: "cut" };

/**
 * Phases: `waiting` for the answer, `running`, `stopping`; then one of `done`, `aborted` (stopped), `cut` (the stream ended before the
 * batch did), `failed` (the server broke it off with an error), `refused` (nothing ran), `reloaded` (the page was left meanwhile).
 */
export class BatchRun {
  phase = "waiting";
  counts = { pending: 0, running: 0, done: 0, aborted: 0, error: 0 };
  /** Tokens of all items, and of those that run. */
  tokens = 0;
  tokensRunning = 0;
  /** Events that could not be read. */
  malformed = 0;
  /** Why it was refused or broken off: ApiError or `{message}`. */
  failure = null;
  startedAt = performance.now();
  endedAt = null;
  #id = newId();
  #controller = new AbortController();
  #onChange;
  #grace;
  #scheduled = false;
  #stopping = false;
  #leavingAt = -Infinity;

  /**
   * @param {{prompts: string[], count: number, options: Object}} call each prompt is used `count` times; `options` are further
   *   members of the call
   * @param {{onChange?: function(BatchRun), grace?: number}} [settings] `onChange` is called at most once per frame; `grace`:
   *   milliseconds between Stop and giving up on the stream
   */
  constructor(call, { onChange = () => {}, grace = GRACE_MS } = {}) {
    this.call = call;
    this.#onChange = onChange;
    this.#grace = grace;
    this.items = call.prompts.flatMap((prompt) => Array.from({ length: call.count }, () => prompt)).map((prompt, id) => new Item(id, prompt));
    this.counts.pending = this.items.length;
  }

  get total() {
    return this.items.length;
  }

  get finished() {
    return this.counts.done + this.counts.aborted + this.counts.error;
  }

  get ended() {
    return this.endedAt !== null;
  }

  /**
   * Sends the call, once. Never throws.
   * @returns {Promise<boolean>} whether it was accepted; its stream is then read on, and `whenEnded` tells its end
   */
  async start() {
    const { prompts, count, options } = this.call;
    const body = { ...options, prompt: prompts.length === 1 ? prompts[0] : prompts, count, batch_id: this.#id };
    let response;
    try {
      response = await send("POST", BEGIN, body, { signal: this.#controller.signal });
    } catch (error) {
      if (!this.#stopping) this.failure = error instanceof ApiError ? error : { message: String(error.message ?? error) };
      this.#end(this.#stopping ? "aborted" : "refused");
      return false;
    }
    this.#id = response.headers.get("x-batch-id") || this.#id;
    this.phase = "running";
    this.#changed();
    this.whenEnded = this.#read(response);
    return true;
  }

  /** Stops it, once: the server tells the end of each item through the stream. */
  async stop() {
    if (this.#stopping || this.ended) return;
    const answered = this.phase === "running";
    this.#stopping = true;
    this.phase = "stopping";
    this.#changed();
    // The server ends the batch of a reader that leaves.
    const leave = () => this.#controller.abort();
    if (!answered) return leave();
    const timer = setTimeout(leave, this.#grace);
    this.whenEnded.finally(() => clearTimeout(timer));
    try {
      await remove(STOP + encodeURIComponent(this.#id), { signal: this.#controller.signal });
    } catch {
      leave();
    }
  }

  /** The page is about to be left, or may be. */
  leave() {
    this.#leavingAt = performance.now();
  }

  async #read(response) {
    let whole = false;
    try {
      let turn = performance.now();
      for await (const data of events(response)) {
        whole = data.trim() === "[DONE]";
        if (whole) break;
        this.#take(data);
        // Such an error is the end, whether the connection is closed after it or not.
        if (this.failure) break;
        if (performance.now() - turn < TURN_MS) continue;
        await nextTurn();
        turn = performance.now();
      }
    } catch {
      // A connection that broke, or that Stop gave up: what has no end yet is told apart below.
    }
    this.#end(this.#outcome(whole));
  }

  #outcome(whole) {
    if (this.failure) return "failed";
    if (this.finished < this.total || !whole) {
      if (this.#stopping) return "aborted";
      return performance.now() - this.#leavingAt < LEAVING_MS ? "reloaded" : "cut";
    }
    if (this.counts.aborted > 0) return "aborted";
    if (this.counts.error < this.total) return "done";
    this.failure = this.items[0].error;
    return "failed";
  }

  /** Every item gets a final state. */
  #end(phase) {
    this.phase = phase;
    this.endedAt = performance.now();
    if (phase === "aborted") this.#endItems("aborted", null);
    else if (phase === "cut" || phase === "reloaded") this.#endItems("error", CUT);
    this.#changed();
  }

  #endItems(status, error) {
    for (const item of this.items) {
      if (item.final) continue;
      item.broken = true;
      this.#set(item, { status, error, tokens: item.tokens });
    }
  }

  #take(data) {
    let value = null;
    try {
      value = JSON.parse(data);
    } catch {
      // Counted below: one bad event is no reason to give up the good ones.
    }
    if (!record(value)) this.malformed += 1;
    else if (record(value.error) && (value.id ?? null) === null) this.#fail(value.error);
    else if (!record(value.batch) && !this.#update(value)) this.malformed += 1;
    this.#changed();
  }

  /** False: not an update of one of the items. */
  #update(value) {
    const item = Number.isInteger(value.id) ? this.items[value.id] : undefined;
    const { status, delta = "", tokens = item?.tokens } = value;
    if (!item || !STATES.includes(status) || typeof delta !== "string" || !Number.isInteger(tokens) || tokens < 0) return false;
    // What is final stays.
    if (item.final) return true;
    item.append(delta);
    if (Number.isInteger(value.seed)) item.seed = value.seed;
    item.finishReason = typeof value.finish_reason === "string" ? value.finish_reason : null;
    this.#set(item, { status, tokens, error: status === "error" ? told(value.error) : null });
    return true;
  }

  #set(item, { status, tokens, error }) {
    this.counts[item.status] -= 1;
    this.counts[status] += 1;
    this.tokens += tokens - item.tokens;
    if (item.status === "running") this.tokensRunning -= item.tokens;
    if (status === "running") this.tokensRunning += tokens;
    Object.assign(item, { status, tokens, error });
    item.version += 1;
  }

  #fail(error) {
    this.failure = told(error);
    this.#endItems("error", this.failure);
  }

  #changed() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      this.#onChange(this);
    });
  }

  /** What `restored` needs, as JSON can hold it. */
  saved() {
    const items = this.items.map((item) => [item.status, item.text, item.tokens, item.finishReason, item.error, item.seed, item.broken]);
    const time = (this.endedAt ?? performance.now()) - this.startedAt;
    return { call: this.call, phase: this.phase, malformed: this.malformed, failure: this.ended && this.failure ? told(this.failure) : null, time, items };
  }

  /** A batch as it was when the page was left; what had no end then was cut. */
  static restored({ call, phase, malformed, failure, time, items }, settings) {
    const run = new BatchRun(call, settings);
    for (const [id, [status, text, tokens, finishReason, error, seed, broken]] of items.entries()) {
      const item = run.items[id];
      item.append(text);
      Object.assign(item, { finishReason, seed, broken });
      run.#set(item, { status, tokens, error });
    }
    const ended = !["waiting", "running", "stopping"].includes(phase);
    if (!ended) run.#endItems("error", CUT);
    Object.assign(run, { phase: ended ? phase : "reloaded", malformed, failure, endedAt: run.startedAt + time });
    return run;
  }
}

const record = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** An error as items keep it. */
function told(error) {
  return { message: typeof error?.message === "string" ? error.message : "", code: typeof error?.code === "string" ? error.code : null };
}

/** A name that nobody else uses; `crypto.randomUUID` is missing on plain HTTP. */
function newId() {
  return `page-${Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Lets the page do what else is due. Timers would wait a second each in a tab that is hidden. */
function nextTurn() {
  return new Promise((resolve) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      channel.port1.close();
      resolve();
    };
    channel.port2.postMessage(null);
  });
}
