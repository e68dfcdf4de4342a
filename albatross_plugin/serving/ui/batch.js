/** The tab Batch: many texts by one call, watched while they are made. */

import { BatchFilter } from "./batch_filter.js";
import { BatchForm } from "./batch_form.js";
import { BatchProgress } from "./batch_progress.js";
import { BatchRun } from "./batch_run.js";
import { restore, save } from "./batch_saved.js";
import { announce, el } from "./dom.js";
import { copy, download, textsOf } from "./export.js";
import { Grid } from "./grid.js";
import { number } from "./numbers.js";
import { onLanguage, t, translate } from "./words.js";

// Figures that change faster cannot be read.
const FIGURES_MS = 100;
const TICK_MS = 500;
const TOLD_MS = 4000;

export function mount(section, app) {
  const tab = new BatchTab(section, app);
  app.onStatus(() => tab.tellButtons());
  onLanguage(() => tab.retell());
  addEventListener("beforeunload", () => tab.leave());
  addEventListener("pagehide", () => tab.save());
}

class BatchTab {
  #app;
  // The batch that is shown, and one that the server has not answered yet.
  #run = null;
  #asked = null;
  #shownAt = 0;
  #ticking = 0;
  #telling = 0;

  constructor(section, app) {
    this.#app = app;
    this.start = el("button", { class: "primary", "data-t": "batch.start", "aria-describedby": "batch-reason" });
    this.stop = button("batch.stop-button", "danger", () => this.#stop());
    this.reason = el("p", { class: "help", id: "batch-reason", "data-t-link": "#model" });
    this.refusal = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.actions = el("div", { class: "batch-actions" }, el("div", { class: "actions" }, this.start, this.stop), this.reason, this.refusal);
    this.form = new BatchForm({ onSubmit: () => this.#begin(), actions: this.actions });
    this.progress = new BatchProgress();
    this.filter = new BatchFilter(() => this.#filtered());
    this.grid = new Grid({ onCopy: (item) => this.#copy([item]) });
    this.copyAll = button("batch.copy", "plain", () => this.#copy(this.#chosen()));
    this.exportAll = button("batch.export", "plain", () => this.#export());
    this.clear = button("batch.clear", "plain", () => this.#clear());
    this.told = el("span", { class: "batch-told" });
    const tools = el("div", { class: "actions" }, this.copyAll, this.exportAll, this.clear);
    const bar = el("div", { class: "batch-bar" }, this.filter.node, tools);
    const keys = [el("p", { class: "help batch-keys", "data-t": "batch.keys" }), el("p", { class: "help batch-keys-touch", "data-t": "batch.keys.touch" })];
    this.results = el("div", { class: "batch-results" }, this.progress.node, this.progress.notice, bar, this.grid.node, ...keys, this.told);
    section.append(el("h2", { class: "sr-only", "data-t": "tab.batch" }), el("div", { class: "batch" }, this.form.node, this.results));
    this.#restore();
    this.tellButtons();
  }

  // --- one batch ---

  async #begin() {
    if (this.#busy() || this.start.disabled) return;
    this.#refuse(null);
    const call = this.form.read();
    if (call === null) return;
    const run = new BatchRun(call, { onChange: (changed) => this.#changed(changed) });
    this.#asked = run;
    this.tellButtons();
    const accepted = await run.start();
    this.#asked = null;
    if (accepted) {
      this.#adopt(run);
      this.#reveal();
      announce(t("batch.said.started", { n: number(run.total) }));
    } else this.#refuse(run);
    this.tellButtons();
  }

  /** Shows a batch in place of the last one, which a refused one leaves there. */
  #adopt(run) {
    this.#run = run;
    this.filter.choose("all");
    this.grid.setFilter((item) => this.filter.matches(item));
    this.grid.setItems(run?.items ?? [], { prompts: run !== null && run.call.prompts.length > 1 });
    this.progress.follow(run);
    this.#show();
    clearInterval(this.#ticking);
    if (run !== null && !run.ended) this.#ticking = setInterval(() => this.#show(), TICK_MS);
  }

  /** Where the texts are below the form, out of sight, they come into it together with the button that stops them. */
  #reveal() {
    if (this.results.getBoundingClientRect().top > innerHeight / 2) this.actions.scrollIntoView({ block: "start" });
  }

  #changed(run) {
    if (run !== this.#run) return;
    this.grid.update({ settled: run.ended });
    if (run.ended) this.#ended();
    else if (performance.now() - this.#shownAt >= FIGURES_MS) this.#show();
  }

  #ended() {
    clearInterval(this.#ticking);
    this.#show();
    const { done, aborted, error } = this.#run.counts;
    announce(t("batch.said.ended", { done: number(done), aborted: number(aborted), error: number(error) }));
    this.tellButtons();
  }

  #stop() {
    (this.#asked ?? this.#run)?.stop();
    this.tellButtons();
  }

  #clear() {
    if (this.#busy()) return;
    this.#adopt(null);
    this.tellButtons();
    this.form.node.querySelector("textarea:not([hidden] *)")?.focus();
  }

  #busy() {
    return this.#asked !== null || (this.#run !== null && !this.#run.ended);
  }

  // --- what is shown ---

  #show() {
    this.#shownAt = performance.now();
    this.progress.show();
    this.filter.show(this.#run);
    this.#tellTools();
  }

  #filtered() {
    this.grid.setFilter((item) => this.filter.matches(item));
    this.tellButtons();
  }

  #refuse(run) {
    this.refusal.hidden = run === null;
    if (run === null) return;
    const { failure, phase } = run;
    const atField = failure?.param && this.form.blame(failure.param, failure.message);
    const again = failure?.retryAfter ? t("batch.notice.again", { n: number(Math.ceil(failure.retryAfter)) }) : "";
    const key =
      phase === "aborted" ? "batch.notice.withdrawn"
      : failure.status === 0 ? "batch.notice.unanswered"
      : failure.code === "batch_exists" ? "batch.notice.repeated"
      : "batch.notice.refused";
    this.refusal.textContent = [t(key, { message: failure?.message ?? "" }), again].filter(Boolean).join("\n");
    if (atField) this.refusal.hidden = true;
  }

  /** Which buttons can be used, and why Start cannot. */
  tellButtons() {
    const busy = this.#busy();
    const reason = busy ? "" : reasonOf(this.#app.status);
    this.start.disabled = busy || reason !== "";
    this.start.textContent = t(this.#asked !== null ? "batch.starting" : "batch.start");
    this.#tellReason(reason === "" ? "" : `batch.reason.${reason}`);
    const phase = (this.#asked ?? this.#run)?.phase;
    this.stop.disabled = !busy || phase === "stopping";
    this.clear.disabled = this.#run === null || busy;
    this.#tellTools();
  }

  /** Why Start cannot be used: a key of words, or none. */
  #tellReason(key) {
    const { reason } = this;
    if (reason.dataset.t === key) return;
    reason.dataset.t = key;
    if (key === "") reason.textContent = "";
    else translate(reason);
  }

  /** There is nothing to take along of a state in which no text is. */
  #tellTools() {
    const { chosen } = this.filter;
    const empty = this.#run === null || (chosen !== "all" && this.#run.counts[chosen] === 0);
    this.copyAll.disabled = this.exportAll.disabled = empty;
  }

  retell() {
    this.form.retell();
    this.grid.relabel();
    this.#show();
    this.tellButtons();
    this.told.textContent = "";
    this.#refuse(null);
  }

  // --- taking results along ---

  #chosen() {
    return this.#run.items.filter((item) => this.filter.matches(item));
  }

  async #copy(items) {
    const done = await copy(textsOf(items));
    this.#tell(t(done ? "batch.said.copied" : "batch.said.not-copied", { n: number(items.length) }));
  }

  #export() {
    const items = this.#chosen();
    const time = new Date(Date.now() - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace(/[:T]/g, "-");
    download(items, `batch-${time}.jsonl`);
    this.#tell(t("batch.said.exported", { n: number(items.length) }));
  }

  #tell(text) {
    announce(text);
    this.told.textContent = text;
    clearTimeout(this.#telling);
    this.#telling = setTimeout(() => (this.told.textContent = ""), TOLD_MS);
  }

  // --- over a reload ---

  leave() {
    this.#run?.leave();
  }

  save() {
    const run = this.#run;
    save({ form: this.form.values(), run: run?.saved() ?? null, counts: run && { ...run.counts } });
  }

  #restore() {
    this.#adopt(null);
    const saved = restore();
    if (saved === null) return;
    try {
      this.form.fill(saved.form);
      if (saved.run) this.#adopt(BatchRun.restored(saved.run));
      else if (saved.counts) this.progress.tell("batch.notice.lost");
    } catch (error) {
      // Of another version of this page.
      console.warn("what was saved of the last batch cannot be read", error);
      this.#adopt(null);
    }
  }
}

function button(key, kind, click) {
  return el("button", { type: "button", class: kind, "data-t": key, on: { click } });
}

/** Why no batch can begin, "" where one can. */
function reasonOf({ albatross, error }) {
  if (albatross === null) return error ? "unreachable" : "unknown";
  if (error?.code === "connection") return "unreachable";
  if (albatross.engine?.phase === "down") return "down";
  return albatross.state === "ready" ? "" : ["offline", "loading", "foreign"].includes(albatross.state) ? albatross.state : "unknown";
}
