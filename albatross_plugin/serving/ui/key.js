/** The dialog that asks for the server's API key. */

import { key, setKey } from "./api.js";
import { el } from "./dom.js";
import { field, tell } from "./fields.js";
import { t } from "./words.js";

let open = null;

/**
 * Opens the dialog, unless it is open.
 * @param {string} reason why it is asked for, "" where the user wants to
 * @param {function()} done called when another key is to be used
 */
export function askForKey(reason, done) {
  if (open) return;
  const input = el("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", value: key() });
  const use = (value) => {
    setKey(value);
    open.close();
    done();
  };
  const form = el(
    "form",
    {
      on: {
        submit: (event) => {
          event.preventDefault();
          const value = input.value.trim();
          // Nothing else can stand in a header.
          if (/^[\x21-\x7e]*$/.test(value)) use(value);
          else tell(input, t("key.letters"));
        },
      },
    },
    el("h2", { id: "key-title", "data-t": "key.title" }),
    reason ? el("p", { class: "notice bad", role: "alert", text: reason }) : null,
    field(input, "key.label", "key.help"),
    el(
      "div",
      { class: "actions" },
      el("button", { class: "primary", "data-t": "key.save" }),
      key() ? el("button", { type: "button", class: "plain", "data-t": "key.forget", on: { click: () => use("") } }) : null,
      el("button", { type: "button", class: "plain", "data-t": "key.cancel", on: { click: () => open.close() } }),
    ),
  );
  open = el("dialog", { class: "dialog", "aria-labelledby": "key-title" }, form);
  open.addEventListener("close", () => {
    open.remove();
    open = null;
  });
  document.body.append(open);
  open.showModal();
  input.focus();
}

/** What a 401 means to somebody who has given a key, or none. */
export function keyReason() {
  return t(key() ? "key.wrong" : "key.missing");
}
