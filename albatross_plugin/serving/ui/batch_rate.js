/** How fast a batch goes, and how long it may still take. No DOM. */

const STEP_MS = 250;
const WINDOW_MS = 5000;

/** Rates over the last seconds. */
export class Rates {
  #samples = [];

  /** @param {number} now milliseconds @param {{tokens: number, finished: number}} counts so far */
  push(now, { tokens, finished }) {
    const last = this.#samples.at(-1);
    if (last && now - last.now < STEP_MS) return;
    this.#samples.push({ now, tokens, finished });
    while (this.#samples.length > 2 && now - this.#samples[1].now >= WINDOW_MS) this.#samples.shift();
  }

  /** `{tokens, finished}` per second, or null while too little is known. */
  get now() {
    const [first] = this.#samples;
    const last = this.#samples.at(-1);
    if (!first || last.now - first.now < STEP_MS) return null;
    const seconds = (last.now - first.now) / 1000;
    return { tokens: (last.tokens - first.tokens) / seconds, finished: (last.finished - first.finished) / seconds };
  }
}

/**
 * Seconds until the end, or null while no item has finished. Items that run count for as much as their tokens are of those of an
 * average finished item: with hundreds of slots whole items finish in waves, and counting these alone would leap.
 * @param {{total: number, counts: Object, finished: number, tokens: number, tokensRunning: number}} run
 * @param {number} passed seconds since its start
 */
export function left({ total, counts, finished, tokens, tokensRunning }, passed) {
  if (finished === 0 || finished === total) return null;
  const average = (tokens - tokensRunning) / finished;
  const begun = average > 0 ? Math.min(tokensRunning / average, 0.9 * counts.running) : 0;
  const share = finished + begun;
  return (passed * (total - share)) / share;
}
