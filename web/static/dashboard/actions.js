// Buttons that change state: confirmation of actions that cannot be undone, and messages of the server.

import { byId } from "./dom.js";
import { ask } from "./api.js";

/** Ask for confirmation. Escape and the first button mean no. */
export function sure(title, text, yes) {
  const dialog = byId("dialog");
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  byId("dialog-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** Show a message; screen readers announce it. */
export function say(text, tone = "bad") {
  const said = byId("said");
  said.textContent = text;
  said.dataset.tone = tone;
  said.hidden = !text;
}

/** Send the request and show the outcome. Returns the response, or null if it failed. */
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

/** Call `handlers[data-action](data-value)` on a click of a button, including buttons that are drawn later. */
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
