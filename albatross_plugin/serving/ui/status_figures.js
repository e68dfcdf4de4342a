/** What the two status answers say, in one flat object; whatever a server leaves out is `null`. No DOM. */

const STATES = ["offline", "loading", "ready", "foreign", "down", "closed"];
/** The numbers of `/status`, as RWKV-Runner's front end knows them. */
const PHASES = { 0: "offline", 1: "loading", 2: "loading", 3: "ready" };

/** What the host itself says of its model, or null. */
export const hostPhase = (host) => PHASES[host?.status] ?? null;

/**
 * @param {any} own the answer of /albatross/status, or null
 * @param {any} host the answer of /status, or null
 */
export function figures(own, host) {
  const engine = record(own?.engine) ?? record(host?.albatross);
  const workers = Array.isArray(engine?.workers) ? engine.workers.filter((worker) => record(worker)) : [];
  const slots = record(engine?.slots);
  const queue = record(engine?.queue);
  const total = count(slots?.total);
  return {
    state: stateOf(own, host, engine),
    model: text(own?.model) ?? text(engine?.model) ?? text(host?.model),
    version: text(own?.version),
    strategy: text(engine?.strategy),
    device: text(host?.device_name),
    error: text(engine?.error),
    workers: workers.length || null,
    batch: total && workers.length ? total / workers.length : null,
    loaded: count(engine?.loaded_bytes),
    toLoad: count(engine?.total_bytes),
    memory: sum(workers, "memory_bytes"),
    peak: sum(workers, "peak_memory_bytes"),
    free: sum(workers, "free_memory_bytes"),
    slots: { taken: count(slots?.active), total },
    queue: {
      length: count(queue?.length),
      limit: count(queue?.limit),
      oldest: count(queue?.oldest_wait_s),
      estimate: count(queue?.estimated_wait_s),
    },
    requests: counts(engine?.requests),
    tokens: counts(engine?.tokens),
    decode: count(engine?.decode_tokens_per_second),
    prefill: count(engine?.prefill_tokens_per_second),
    batches: batchesOf(own?.batches),
  };
}

function stateOf(own, host, engine) {
  if (STATES.includes(own?.state)) return engine?.phase === "down" ? "down" : own.state;
  if (STATES.includes(engine?.phase)) return engine.phase;
  const phase = hostPhase(host);
  // A model that works, of which the engine knows nothing, is somebody else's.
  return phase === "ready" ? "foreign" : phase;
}

/** Number and items of the batches that run, whether they come as a number, an object or a list. */
function batchesOf(value) {
  if (Array.isArray(value)) return { running: value.length, items: sum(value, "items") ?? sum(value, "count") };
  if (record(value)) return { running: count(value.running) ?? count(value.count) ?? count(value.number), items: count(value.items) };
  return { running: count(value), items: null };
}

function counts(value) {
  return Object.fromEntries(Object.entries(record(value) ?? {}).flatMap(([name, each]) => (count(each) === null ? [] : [[name, each]])));
}

function sum(list, name) {
  const known = list.map((each) => count(each?.[name])).filter((value) => value !== null);
  return known.length ? known.reduce((left, right) => left + right, 0) : null;
}

const record = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : null);
const count = (value) => (typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : null);
const text = (value) => (typeof value === "string" && value !== "" ? value : null);
