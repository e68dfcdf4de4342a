/** The frame: tabs, language, API key, and the status that all tabs share. */

import { ApiError, getJson, onUnauthorized, poll } from "./api.js";
import * as batch from "./batch.js";
import * as chat from "./chat.js";
import { clear, el } from "./dom.js";
import { askForKey, keyReason } from "./key.js";
import * as load from "./load.js";
import * as status from "./status.js";
import { hostPhase } from "./status_figures.js";
import { language, onLanguage, retell, setLanguage, t } from "./words.js";

const TABS = { model: load, status, chat, batch };
const CALM_MS = 1000;
const LOADING_MS = 500;
// The longest that a timer can wait.
const NEVER_MS = 2 ** 31 - 1;

/**
 * What the tabs share.
 * - `status.albatross`: the latest answer of `/albatross/status`, or null before the first one
 * - `status.host`: the latest answer of `/status` (strategies, device_modes, deploy ...), or null
 * - `status.error`: ApiError of the last question, null while the server answers
 * - `status.state`: unknown, offline, loading, ready, foreign, down or closed; of both answers
 * - `hurry`: true while a load of this page goes on, whose progress is to be seen
 */
class App {
  status = { albatross: null, host: null, error: null, state: "unknown" };
  hurry = false;
  #callbacks = new Set();
  #poll = null;
  #asking = null;
  // What `/status` said is out of date until the question with this number is answered.
  #wanted = 1;
  #answered = 0;

  start() {
    this.#poll = poll("/albatross/status", () => this.#pause(), (answer, error) => this.#take(answer, error));
  }

  /** Calls back with `status` after each answer, and at once where there is one. Returns what ends that. */
  onStatus(callback) {
    this.#callbacks.add(callback);
    if (this.status.albatross || this.status.error) callback(this.status);
    return () => this.#callbacks.delete(callback);
  }

  /** Asks for both statuses at once, not at the next turn. */
  refresh() {
    this.#wanted += 1;
    this.#poll?.now();
  }

  #pause() {
    // Without a key there is nothing to see; the next one that is given asks at once.
    if (this.status.error?.status === 401) return NEVER_MS;
    return this.hurry || this.status.state === "loading" ? LOADING_MS : CALM_MS;
  }

  #take(answer, error) {
    const before = this.status.albatross;
    this.status.error = error;
    if (answer) {
      this.status.albatross = answer;
      const changed = before?.state !== answer.state || before?.model !== answer.model;
      // Loads that are none of the engine's, of a .gguf file for example, show there alone.
      if (changed) this.#wanted += 1;
      if (this.#answered < this.#wanted || hostPhase(this.status.host) === "loading") this.#askHost();
    }
    this.#tell();
  }

  #askHost() {
    const number = this.#wanted;
    this.#asking ??= getJson("/status")
      .then((answer) => {
        this.status.host = answer;
        this.#answered = number;
        this.#tell();
      })
      .catch((error) => {
        // The next turn of the poll asks again.
        if (!(error instanceof ApiError)) throw error;
      })
      .finally(() => {
        this.#asking = null;
      });
  }

  #tell() {
    const { albatross, host } = this.status;
    const state = albatross?.state ?? "unknown";
    const elsewhere = state === "offline" && this.#answered === this.#wanted && hostPhase(host) === "loading";
    this.status.state = elsewhere ? "loading" : state;
    for (const callback of this.#callbacks) {
      try {
        callback(this.status);
      } catch (error) {
        // A fault of one tab is seen in the console, and costs the others nothing.
        reportError(error);
      }
    }
  }
}

/** How far down each tab was left. What a scroll event has told counts: where a step back leads, the page is moved before its tab is. */
const places = new Map();
let shown = null;

function show(name, { focus = false } = {}) {
  for (const each of Object.keys(TABS)) {
    const tab = document.getElementById(`tab-${each}`);
    const chosen = each === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(each).hidden = !chosen;
  }
  // Not at the start: a fragment that appears while the page loads would move the place where the Tab key begins.
  if (fromHash() !== name) history.replaceState(null, "", `#${name}`);
  document.getElementById(name).dispatchEvent(new CustomEvent("shown"));
  // At the start the browser has its own place for a page that is loaded again.
  if (shown !== null && shown !== name) scrollTo(0, places.get(name) ?? 0);
  shown = name;
  if (focus) document.getElementById(`tab-${name}`).focus();
}

function fromHash() {
  const name = location.hash.slice(1);
  return Object.hasOwn(TABS, name) ? name : "model";
}

function setUpTabs() {
  const names = Object.keys(TABS);
  for (const [index, name] of names.entries()) {
    const tab = document.getElementById(`tab-${name}`);
    tab.addEventListener("click", () => show(name));
    tab.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: index + 1, ArrowLeft: index - 1 + names.length, Home: 0, End: names.length - 1 };
      if (!Object.hasOwn(steps, event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      show(names[steps[event.key] % names.length], { focus: true });
    });
  }
  addEventListener("hashchange", () => show(fromHash()));
  addEventListener("scroll", () => places.set(shown, scrollY), { passive: true });
}

function mountAll(app) {
  for (const [name, module] of Object.entries(TABS)) {
    const section = document.getElementById(name);
    try {
      module.mount(section, app);
    } catch (error) {
      // One broken tab leaves the others as they are.
      console.error(error);
      clear(section).append(el("p", { class: "notice bad", role: "alert", text: t("error.tab", { message: error.message }) }));
    }
  }
}

/** Name and state of the model in the header, and whether the server answers at all. */
function tellHeader({ albatross, error, state }) {
  const name = albatross?.model ?? albatross?.engine?.model ?? "";
  const line = document.getElementById("model-now");
  line.dataset.state = error?.status === 0 ? "lost" : error ? "unknown" : state;
  document.getElementById("model-name").textContent = name;
  document.getElementById("model-name").title = name;
  document.getElementById("model-state").textContent = t(`state.${error?.status === 0 ? "lost" : error?.status === 401 ? "locked" : state}`);
  const notice = document.getElementById("connection");
  notice.hidden = error === null;
  const text = error?.status === 401 ? keyReason() : error?.code === "connection" ? t("error.connection") : (error?.message ?? "");
  if (notice.textContent !== text) notice.textContent = text;
}

function setUpLanguage(app) {
  const choice = document.getElementById("language");
  choice.value = language();
  choice.addEventListener("change", () => setLanguage(choice.value));
  onLanguage(() => tellHeader(app.status));
  retell();
}

function main() {
  const app = new App();
  setUpLanguage(app);
  setUpTabs();
  mountAll(app);
  show(fromHash());
  document.getElementById("key-button").addEventListener("click", () => askForKey("", () => app.refresh()));
  onUnauthorized(() => askForKey(keyReason(), () => app.refresh()));
  app.onStatus(tellHeader);
  tellHeader(app.status);
  app.start();
}

main();
