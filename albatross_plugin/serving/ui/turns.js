/** Short requests take turns: beside a stream the page has one of them open, and so needs two connections. No DOM. */

/** Milliseconds that a turn may last: a request that is never answered keeps the others waiting no longer. */
const LIMIT_MS = 20000;
const waiting = [];
let busy = false;

/**
 * Does `work` as soon as no other work goes on.
 * @param {function(AbortSignal): Promise} work gets a signal that says when to give up
 * @param {{urgent?: boolean, signal?: AbortSignal}} [settings] `urgent`: before all others that wait; `signal`: ends it, also while it
 *   waits
 * @returns {Promise} what `work` gives; throws what it throws, or the reason of `signal`
 */
export async function inTurn(work, { urgent = false, signal = null } = {}) {
  signal?.throwIfAborted();
  if (busy) await place(urgent, signal);
  busy = true;
  const controller = new AbortController();
  const end = () => controller.abort(signal.reason);
  const timer = setTimeout(() => controller.abort(new DOMException("no answer in time", "TimeoutError")), LIMIT_MS);
  signal?.addEventListener("abort", end);
  try {
    if (signal?.aborted) end();
    return await work(controller.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    const next = waiting.shift();
    // What waits goes on a little later: until then nobody else may begin.
    if (next) next.go();
    else busy = false;
  }
}

/** A place in the queue; throws where `signal` ends the wait. */
function place(urgent, signal) {
  return new Promise((resolve, reject) => {
    const leave = () => {
      waiting.splice(waiting.indexOf(entry), 1);
      reject(signal.reason);
    };
    const go = () => {
      signal?.removeEventListener("abort", leave);
      resolve();
    };
    const entry = { urgent, go };
    signal?.addEventListener("abort", leave, { once: true });
    // Behind what is as urgent.
    const at = urgent ? waiting.findIndex((each) => !each.urgent) : -1;
    if (at < 0) waiting.push(entry);
    else waiting.splice(at, 0, entry);
  });
}
