/** What scrolls the conversation: its end stays in view as long as the reader is there, and no longer. */

import { el } from "./dom.js";

/** Pixels from the end within which a reader counts as being there. */
const NEAR = 32;

export class Log {
  #following = true;

  constructor(...children) {
    this.node = el("div", { class: "chat-log", role: "log", tabindex: "0", "data-t-label": "chat.log" }, children);
    this.node.addEventListener("scroll", () => this.#look());
    // Also when the tab is shown again, the settings are opened, or a phone's keyboard comes.
    new ResizeObserver(() => this.follow()).observe(this.node);
  }

  /** To be called when something was added: shows the end to a reader who was there. */
  follow() {
    if (this.#following) this.node.scrollTop = this.node.scrollHeight;
  }

  /** Shows the end, wherever the reader was. */
  reveal() {
    this.#following = true;
    this.follow();
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.node;
    // In a tab that is not shown, everything is 0.
    if (clientHeight > 0) this.#following = scrollHeight - scrollTop - clientHeight < NEAR;
  }
}
