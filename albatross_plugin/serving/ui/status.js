/** The tab Status: what the engine does, and its rate over the last two minutes. */

import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { bytes, bytesOf, duration, number, rate, short } from "./numbers.js";
import { figures } from "./status_figures.js";
import { onLanguage, t } from "./words.js";

const OUTCOMES = ["accepted", "stop", "length", "abort", "error", "rejected"];

export function mount(section, app) {
  const tab = new StatusTab(section);
  // The frame asks once a second for all tabs; a second question would tell nothing more.
  app.onStatus((status) => tab.take(status));
  onLanguage(() => tab.show());
  section.addEventListener("shown", () => tab.show());
}

class StatusTab {
  #section;
  #answer = null;
  #status = { albatross: null, host: null, error: null, state: "unknown" };
  #chart = new Chart({ format: short, ago: (past) => (past ? t("status.ago", { seconds: number(past) }) : t("status.now")) });

  constructor(section) {
    this.#section = section;
    this.name = el("h2");
    this.state = el("span", { class: "pill" });
    this.notice = el("p", { class: "notice", hidden: true });
    this.away = el("p", { class: "status-away", hidden: true }, el("a", { href: "#model", "data-t": "status.to_model" }));
    this.load = new Meter("status.load");
    this.facts = new Facts("status", ["strategy", "workers", "batch", "device", "memory", "free", "version"], { free: "status.memory.free" });
    this.now = el("strong", { class: "status-now" });
    this.prefill = el("span", { class: "muted" });
    this.slots = new Meter("status.slots");
    this.queue = new Meter("status.queue");
    this.waits = new Facts("status.queue", ["oldest", "estimate"]);
    this.batches = new Facts("status.batches", ["running", "items"]);
    this.requests = new Facts("status.requests", OUTCOMES);
    this.tokens = new Facts("status.tokens", ["generated", "prompt"]);
    this.cards = el(
      "div",
      { class: "status-cards" },
      card("status.slots", this.slots.node),
      card("status.queue", this.queue.node, this.waits.node),
      card("status.batches", this.batches.node),
      card("status.requests", this.requests.node),
      card("status.tokens", this.tokens.node),
    );
    const head = el("div", { class: "status-head" }, this.name, this.state);
    const rates = el("div", { class: "status-head" }, el("h3", { "data-t": "status.rate" }), this.now, this.prefill);
    this.rates = el("div", { class: "card" }, rates, this.#chart.svg);
    this.body = el(
      "div",
      { class: "status" },
      el("div", { class: "card" }, head, this.notice, this.away, this.load.node, this.facts.node),
      this.rates,
      this.cards,
    );
    section.append(this.body);
    this.show();
  }

  /** A new answer, or none. */
  take(status) {
    this.#status = status;
    if (status.error) this.#chart.push(null);
    else if (status.albatross !== this.#answer) this.#chart.push(figures(status.albatross, status.host).decode);
    this.#answer = status.albatross;
    this.show();
  }

  show() {
    if (this.#section.hidden) return;
    const { albatross, host, error } = this.#status;
    const now = figures(albatross, host);
    this.body.classList.toggle("stale", error !== null);
    this.#showHead(now);
    this.#showFacts(now);
    this.#showRate(error ? null : now.decode, now);
    this.cards.hidden = now.slots.total === null;
    this.slots.show(now.slots.taken, now.slots.total, t("status.slots.taken", shown({ taken: now.slots.taken, total: now.slots.total })));
    this.queue.show(now.queue.length, now.queue.limit, t("status.queue.waiting", shown({ length: now.queue.length, limit: now.queue.limit })));
    this.waits.show({ oldest: now.queue.oldest, estimate: now.queue.estimate }, duration);
    this.batches.show(now.batches);
    this.requests.show(now.requests);
    this.tokens.show(now.tokens);
  }

  #showHead(now) {
    const { error, state: told } = this.#status;
    // The frame knows of loads that are none of the engine's.
    const known = told === "loading" ? told : (now.state ?? "unknown");
    const state = error ? (error.status === 0 ? "lost" : "unknown") : known;
    this.away.hidden = state !== "offline";
    put(this.name, state === "offline" ? t("status.no_model") : (now.model ?? t("status.model")));
    this.state.dataset.state = state;
    put(this.state, t(`state.${state}`));
    const text = !error && state === "down" ? t("status.down", { message: now.error ?? "" }) : state === "foreign" ? t("status.no_figures") : "";
    this.notice.hidden = text === "";
    this.notice.classList.toggle("bad", state === "down");
    put(this.notice, text);
    this.load.node.hidden = state !== "loading" || !now.toLoad;
    this.load.show(now.loaded, now.toLoad, bytesOf(now.loaded ?? 0, now.toLoad ?? 0));
  }

  #showFacts(now) {
    const memory = now.memory === null ? null : t("status.memory.of", { used: bytes(now.memory), peak: bytes(now.peak ?? now.memory) });
    const free = now.free === null ? null : bytes(now.free);
    this.facts.show({ ...now, memory, free });
  }

  #showRate(decode, { prefill, state }) {
    const words = decode === null ? t("status.rate.none") : t("status.rate.now", { rate: rate(decode) });
    put(this.now, words);
    put(this.prefill, prefill ? t("status.rate.prefill", { rate: rate(prefill) }) : "");
    // What was drawn before is of another model then.
    this.rates.hidden = state === "foreign" || (decode === null && !this.#chart.samples.some((sample) => sample.value !== null));
    this.#chart.draw();
    const minutes = number(this.#chart.seconds / 60);
    this.#chart.describe(t("status.rate.chart", { minutes, rate: words, peak: rate(this.#chart.highest) }));
  }
}

/** Named values; one that is not known is not shown. */
class Facts {
  /** @param {string} prefix of the words' keys @param {string[]} names @param {Object} [keys] of names whose words have another key */
  constructor(prefix, names, keys = {}) {
    this.values = Object.fromEntries(names.map((name) => [name, el("dd")]));
    this.rows = Object.fromEntries(
      names.map((name) => [name, el("div", { hidden: true }, el("dt", { "data-t": keys[name] ?? `${prefix}.${name}` }), this.values[name])]),
    );
    this.node = el("dl", { class: "facts" }, Object.values(this.rows));
  }

  show(values, format = number) {
    for (const [name, row] of Object.entries(this.rows)) {
      const value = values[name] ?? null;
      row.hidden = value === null;
      put(this.values[name], value === null ? "" : typeof value === "number" ? format(value) : value);
    }
  }
}

/** A bar with its figures in words. */
class Meter {
  constructor(key) {
    this.fill = el("div", { class: "meter-fill" });
    this.bar = el("div", { class: "meter", role: "meter", "aria-valuemin": "0", "data-t-label": key }, this.fill);
    this.words = el("p", { class: "meter-words" });
    this.node = el("div", {}, this.words, this.bar);
  }

  show(value, most, words) {
    put(this.words, words);
    this.bar.hidden = value === null || !most;
    if (this.bar.hidden) return;
    this.fill.style.width = `${Math.min(100, (100 * value) / most)}%`;
    this.bar.setAttribute("aria-valuenow", String(Math.min(value, most)));
    this.bar.setAttribute("aria-valuemax", String(most));
    this.bar.setAttribute("aria-valuetext", words);
  }
}

function card(key, ...children) {
  return el("div", { class: "card" }, el("h3", { "data-t": key }), children);
}

/** Figures for a sentence: a dash for what is not known. */
function shown(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value === null ? "–" : number(value)]));
}

/** Text that stays as it is is left alone: somebody may have selected it. */
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
