// Buttons that change something: asked about first where that cannot be undone, and told in the server's own words what went wrong.

import { byId } from "./dom.js";
import { ask } from "./api.js";

/** Whether the reader is sure. Escape and the first button say no. */
export function sure(title, text, yes) {
  const dialog = byId("dialog");
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  byId("dialog-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** What became of it, where it can be heard too. */
export function say(text, tone = "bad") {
  const said = byId("said");
  said.textContent = text;
  said.dataset.tone = tone;
  said.hidden = !text;
}

/** Ask the server for it; whether it did. */
export async function act(path, method, done) {
  try {
    const told = await ask(path, method);
    say(done?.(told) ?? "", "good");
    return told;
  } catch (problem) {
    say(problem.message);
    return null;
  }
}

/** Call `handlers[data-action](data-value)` when a button is used, wherever it was drawn. */
export function onActions(root, handlers) {
  root.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-action]");
    if (!button || button.disabled || !handlers[button.dataset.action]) return;
    button.disabled = true;
    try {
      await handlers[button.dataset.action](button.dataset.value, button);
    } finally {
      button.disabled = false;
    }
  });
}
