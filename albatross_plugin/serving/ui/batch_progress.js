/** How far a batch is: the bar, the figures, and what there is to say about its end. */

import { left, Rates } from "./batch_rate.js";
import { el } from "./dom.js";
import { duration, number, rate } from "./numbers.js";
import { t } from "./words.js";

const FIGURES = ["tokens", "items", "passed", "left"];
const UNKNOWN = "—";

export class BatchProgress {
  #run = null;
  #rates = new Rates();
  #notice = null;

  constructor() {
    this.bar = el("progress", { "data-t-label": "batch.progress", max: "1", value: 0 });
    this.count = el("strong", { class: "batch-finished" });
    this.phase = el("span", { class: "muted" });
    this.figures = Object.fromEntries(FIGURES.map((name) => [name, el("dd", { text: UNKNOWN })]));
    const facts = el("dl", { class: "batch-figures" }, FIGURES.map((name) => el("div", {}, el("dt", { "data-t": `batch.figure.${name}` }), this.figures[name])));
    this.notice = el("p", { class: "notice", role: "status", hidden: true });
    this.node = el("div", { class: "batch-progress", hidden: true }, el("div", { class: "batch-head" }, el("p", {}, this.count, " ", this.phase), facts), this.bar);
  }

  /** Shows another batch, or none. */
  follow(run) {
    this.#run = run;
    this.#rates = new Rates();
    this.#notice = null;
    this.node.hidden = run === null;
    this.show();
  }

  /** Says something that is no batch's; null takes it back. */
  tell(notice) {
    this.#notice = notice;
    this.#tellNotice();
  }

  show() {
    const run = this.#run;
    if (run !== null) {
      const now = run.endedAt ?? performance.now();
      const passed = (now - run.startedAt) / 1000;
      if (!run.ended) this.#rates.push(now, run);
      const whole = run.items.reduce((sum, item) => sum + (item.final && item.status !== "aborted" && !item.broken), 0);
      this.node.dataset.phase = run.phase;
      this.bar.max = run.total;
      this.bar.value = whole;
      this.count.textContent = t("batch.finished", { n: number(whole), total: number(run.total) });
      this.phase.textContent = t(`batch.phase.${run.phase}`);
      this.#showFigures(run, whole, passed);
    }
    this.#tellNotice();
  }

  #showFigures(run, whole, passed) {
    // When all is over the average is what remains to be told.
    const average = passed > 0 ? { tokens: run.tokens / passed, finished: whole / passed } : null;
    const now = run.ended ? average : this.#rates.now;
    const rest = run.ended ? null : left(run, passed);
    const said = {
      tokens: now && rate(now.tokens),
      items: now && rate(now.finished),
      passed: duration(passed < 10 ? passed : Math.floor(passed)),
      left: rest === null ? null : t("batch.about", { time: duration(Math.ceil(rest)) }),
    };
    for (const name of FIGURES) this.figures[name].textContent = said[name] ?? UNKNOWN;
  }

  #tellNotice() {
    const { text, kind } = this.#notice ? { text: t(this.#notice), kind: "warn" } : noticeOf(this.#run);
    this.notice.hidden = text === "";
    this.notice.className = `notice ${kind}`;
    if (this.notice.textContent !== text) this.notice.textContent = text;
  }
}

/** What there is to say about a batch beyond its figures. */
function noticeOf(run) {
  if (run === null) return { text: "", kind: "" };
  const said = [];
  let kind = "warn";
  const cut = run.items.reduce((sum, item) => sum + (item.shown === "cut"), 0);
  if (run.phase === "cut" || run.phase === "reloaded") said.push(t(`batch.notice.${run.phase}${cut ? "" : ".none"}`, { n: number(cut) }));
  if (run.phase === "failed") {
    said.push(t("batch.notice.failed", { message: run.failure.message }));
    kind = "bad";
  }
  const failed = run.phase === "done" && run.items.find((item) => item.status === "error");
  if (failed) said.push(t("batch.notice.errors", { n: number(run.counts.error), message: failed.error?.message || t("batch.item.error") }));
  if (run.malformed > 0) said.push(t("batch.notice.malformed", { n: number(run.malformed) }));
  return { text: said.join(" "), kind };
}
