/** The tab Model: choosing a model and a device mode, loading, unloading, and what is loaded now. */

import { ApiError, getJson, send } from "./api.js";
import { CurrentModel } from "./current_model.js";
import { DeviceModes } from "./device_modes.js";
import { clear, el } from "./dom.js";
import { field, tell } from "./fields.js";
import { LoadProgress } from "./load_progress.js";
import { duration } from "./numbers.js";
import { hostPhase } from "./status_figures.js";
import { t } from "./words.js";

const SAVED = "albatross.models";
const REMEMBERED = 10;
// Refusals of a call's address, not of the load itself.
const NOT_DEPLOY = ["origin_not_allowed", "host_not_allowed"];

/** Builds the tab into its section. */
export function mount(section, app) {
  new ModelTab(section, app);
}

class ModelTab {
  #app;
  #running = false;
  // A load whose outcome no call of this page tells goes on, or has gone on until now.
  #watched = false;
  // The load of this page has told its outcome, which the status may lag behind.
  #told = false;
  #modes = new DeviceModes();
  #progress = new LoadProgress();
  #outcome = el("div", { id: "load-outcome", role: "alert" });
  #history = el("datalist", { id: "model-history" });
  #path = el("input", {
    id: "model-path",
    type: "text",
    list: "model-history",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "none",
    placeholder: "models/rwkv7-g1-2.9b.pth",
  });
  #tokenizer = el("input", { id: "tokenizer", type: "text", spellcheck: "false", autocomplete: "off", autocapitalize: "none" });
  #gguf = el("p", { class: "notice", id: "gguf-note", hidden: true, "data-t": "model.gguf" });
  #deployed = el("p", { class: "notice warn", id: "deploy-note", hidden: true, "data-t": "model.deploy" });
  #load = el("button", { id: "load-button", class: "primary", "data-t": "model.load" });
  #current;

  constructor(section, app) {
    this.#app = app;
    this.#current = new CurrentModel(() => this.#unload());
    const form = el(
      "form",
      { class: "card stack", id: "load-form", novalidate: true, "aria-labelledby": "load-title", on: { submit: (event) => this.#submit(event) } },
      el("h2", { id: "load-title", "data-t": "model.title" }),
      this.#deployed,
      field(this.#path, "model.path", "model.path.help"),
      this.#history,
      this.#gguf,
      this.#modes.node,
      el("details", { class: "more" }, el("summary", { "data-t": "model.more" }), field(this.#tokenizer, "model.tokenizer", "model.tokenizer.help")),
      el("div", { class: "actions" }, this.#load),
      this.#progress.node,
      this.#outcome,
    );
    section.append(el("div", { class: "model-grid" }, form, this.#current.node));
    this.#path.addEventListener("input", () => this.#look());
    this.#remind();
    app.onStatus((status) => this.#take(status));
  }

  #take(status) {
    if (status.host) this.#modes.offer(status.host.device_modes);
    this.#deployed.hidden = status.host?.deploy !== true;
    const loading = status.state === "loading";
    if (!this.#running) this.#watch(status, loading);
    this.#load.disabled = this.#running || (loading && !this.#told) || !this.#deployed.hidden;
    this.#progress.update(status.albatross?.engine ?? null);
    this.#current.show(status, this.#running);
  }

  /** Loads that were begun elsewhere, or by this page before it was loaded anew. */
  #watch(status, loading) {
    if (!loading) this.#told = false;
    if (loading && !this.#told) {
      this.#watched = true;
      this.#progress.watch();
    } else this.#progress.end();
    if (this.#watched && !loading) this.#tellWatched(status);
  }

  #tellWatched({ albatross, host, state }) {
    if (state === "ready" || state === "foreign") {
      this.#say("ok", t("model.loaded.elsewhere", { name: albatross.model ?? host?.model ?? "–" }), "", next(state));
    } else if (state === "down" || hostPhase(host) === "offline") this.#say("bad", t("model.gone"), albatross.engine?.error ?? "");
    // One of the two answers may be older than the end of the load: the next ones tell.
    else return;
    this.#watched = false;
  }

  #look() {
    this.#gguf.hidden = !this.#isGguf();
  }

  #isGguf() {
    return this.#path.value.trim().toLowerCase().endsWith(".gguf");
  }

  #submit(event) {
    event.preventDefault();
    if (this.#load.disabled) return;
    const path = this.#path.value.trim();
    const problems = new Map();
    if (!path) problems.set(this.#path, t("model.path.missing"));
    tell(this.#path, problems.get(this.#path) ?? "");
    for (const [input, problem] of this.#modes.problems({ needed: !this.#isGguf() })) problems.set(input, problem);
    const [first] = problems.keys();
    if (first) {
      first.focus();
      return;
    }
    this.#remember(path);
    this.#switch({ model: path, strategy: this.#modes.strategy(), tokenizer: this.#tokenizer.value.trim() });
  }

  #unload() {
    if (!this.#running) this.#switch({ model: "", strategy: "", tokenizer: "" });
  }

  /** One call, one outcome. What the connection loses is not sent again: the load may go on without us. */
  async #switch(wanted) {
    this.#watched = false;
    this.#told = true;
    this.#busy(true);
    clear(this.#outcome);
    if (wanted.model) this.#progress.begin();
    try {
      await send("POST", "/switch-model", { ...wanted, customCuda: false, deploy: false });
      await this.#done(wanted.model);
    } catch (error) {
      this.#failed(error, wanted.model);
    } finally {
      this.#progress.end();
      this.#busy(false);
      this.#app.refresh();
    }
  }

  #busy(running) {
    this.#running = running;
    this.#app.hurry = running;
    if (running) this.#app.refresh();
    this.#load.disabled = running || !this.#deployed.hidden;
    this.#current.show(this.#app.status, running);
  }

  async #done(model) {
    if (!model) {
      this.#say("ok", t("model.unloaded"));
      return;
    }
    // However small the model, no time at all is not what it took.
    const time = duration(Math.max(0.1, this.#progress.passed / 1000));
    const answer = await getJson("/albatross/status").catch(() => null);
    const name = answer?.model ?? model.split(/[\\/]/).pop();
    this.#say("ok", t("model.loaded", { name, time }), "", next(answer?.state));
  }

  #failed(error, model) {
    if (!(error instanceof ApiError)) throw error;
    // Then a load that goes on, whoever began it, has its outcome still to be told.
    this.#told = error.status !== 304 && error.status !== 0;
    if (error.status === 304) this.#say("warn", t("model.busy"));
    else if (error.status === 401) this.#say("warn", t("model.key"));
    else if (error.status === 403 && !NOT_DEPLOY.includes(error.code)) this.#say("warn", t("model.deploy"));
    else if (error.status === 0) this.#say("bad", t(model ? "model.lost" : "error.connection"));
    else this.#say("bad", t(model ? "model.failed" : "model.unload.failed"), error.message);
  }

  #say(kind, text, reason = "", more = null) {
    clear(this.#outcome).append(
      el("div", { class: `notice ${kind}` }, el("p", { text }), reason ? el("p", { class: "reason", text: reason }) : null, more),
    );
  }

  #remind() {
    const known = saved();
    clear(this.#history).append(...known.map((path) => el("option", { value: path })));
    // The path alone: what it is to run on is asked anew each time.
    if (!this.#path.value && known.length) this.#path.value = known[0];
    this.#look();
  }

  #remember(path) {
    try {
      localStorage.setItem(SAVED, JSON.stringify([path, ...saved().filter((each) => each !== path)].slice(0, REMEMBERED)));
    } catch {
      // A browser that keeps nothing has no history.
    }
    this.#remind();
  }
}

/** What can be done with a model in this state: batches are albatross's own. */
function next(state) {
  const batch = state === "foreign" ? null : el("a", { href: "#batch", "data-t": "model.to.batch" });
  return el("p", { class: "actions" }, el("a", { href: "#chat", "data-t": "model.to.chat" }), batch);
}

function saved() {
  try {
    const paths = JSON.parse(localStorage.getItem(SAVED) ?? "[]");
    return Array.isArray(paths) ? paths.filter((path) => typeof path === "string" && path).slice(0, REMEMBERED) : [];
  } catch {
    return [];
  }
}
