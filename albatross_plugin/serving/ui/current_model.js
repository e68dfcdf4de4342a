/** What is loaded now, with the button that unloads it. */

import { clear, el } from "./dom.js";
import { language, onLanguage, t } from "./words.js";

export class CurrentModel {
  #status = null;
  #running = false;
  #drawn = "";
  #facts = el("dl", { class: "model-facts", id: "model-facts" });
  #problem = el("p", { class: "notice bad", hidden: true });
  #unload;
  node;

  constructor(unload) {
    this.#unload = el("button", { type: "button", id: "unload-button", class: "danger", "data-t": "model.unload", disabled: true, on: { click: unload } });
    this.node = el(
      "section",
      { class: "card stack", "aria-labelledby": "current-title" },
      el("h2", { id: "current-title", "data-t": "model.current" }),
      this.#facts,
      this.#problem,
      el("div", { class: "actions" }, this.#unload),
    );
    onLanguage(() => this.#draw());
  }

  /** `running`: a load or an unload of this page goes on. */
  show(status, running) {
    this.#status = status;
    this.#running = running;
    this.#draw();
  }

  #draw() {
    const { albatross, host, state, error } = this.#status ?? {};
    const lost = error?.status === 0;
    const loaded = ["ready", "foreign", "down", "closed"].includes(state);
    this.#unload.disabled = this.#running || !loaded || lost || host?.deploy === true;
    const engine = albatross?.engine;
    const facts = [
      ["model.fact.name", state === "offline" ? "–" : (albatross?.model ?? engine?.model ?? host?.model ?? "–")],
      ["model.fact.state", t(`state.${lost ? "lost" : (state ?? "unknown")}`)],
      ["model.fact.workers", engine?.workers?.length],
      ["model.fact.slots", engine?.slots?.total || null],
      ["model.fact.device", host?.device_name],
      ["model.fact.version", albatross?.version],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    const now = JSON.stringify([language(), facts]);
    // Drawn once a second, it would take a selection away from under the mouse.
    if (now !== this.#drawn) clear(this.#facts).append(...facts.map(([key, value]) => fact(key, value)));
    this.#drawn = now;
    const problem = state === "down" ? (engine?.error ?? "") : "";
    this.#problem.hidden = !problem;
    if (this.#problem.textContent !== problem) this.#problem.textContent = problem;
  }
}

function fact(key, value) {
  return el("div", {}, el("dt", { "data-t": key }), el("dd", { text: String(value) }));
}
