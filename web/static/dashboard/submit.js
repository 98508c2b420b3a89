// Submit page: a form for each job kind. The page checks the JSON syntax, the server the fields.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { repeat } from "./live.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    byId(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.id.slice(4)}`);
}

tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", ({ key }) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[key];
    if (to === undefined) return;
    const other = tabs[(to + tabs.length) % tabs.length];
    other.focus();
    choose(other);
  });
});

/** Select the field of an error in the text: the last part of `spec.scorers[0].options.tolerance` that the text has. */
function point(area, field) {
  for (const name of (field.match(/[A-Za-z_]\w*/g) ?? []).reverse()) {
    const at = area.value.indexOf(`"${name}"`);
    if (at >= 0) {
      area.focus();
      area.setSelectionRange(at, at + name.length + 2);
      return;
    }
  }
  area.focus();
}

function complain(form, text, field = "") {
  const said = form.querySelector(".said");
  show(said, field ? [h("b", {}, field), " "] : "", field && text.startsWith(`${field}: `) ? text.slice(field.length + 2) : text);
  said.hidden = !text;
  form.elements.body.setAttribute("aria-invalid", Boolean(text));
}

async function send(form) {
  const area = form.elements.body;
  try {
    JSON.parse(area.value);
  } catch (error) {
    complain(form, `Invalid JSON: ${error.message}.`);
    return area.focus();
  }
  complain(form, "");
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  button.textContent = "Submitting …";
  try {
    const made = await ask(form.dataset.path, "POST", area.value);
    location.assign(`/jobs/${made.id}`);
  } catch (problem) {
    complain(form, problem.message, problem.field);
    if (problem.field) point(area, problem.field);
  } finally {
    button.disabled = false;
    button.textContent = "Submit";
  }
}

for (const form of document.querySelectorAll("form.panel")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.addEventListener("reset", () => complain(form, ""));
  form.elements.body.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send(form));
}

choose(byId(`tab-${location.hash.slice(1)}`) ?? tabs[0]);
repeat(async () => {
  const { missing } = await ask("/ready").catch((problem) => (problem.told?.missing ? problem.told : Promise.reject(problem)));
  byId("missing").textContent = missing.length ? `The system is not ready: ${missing.join("; ")}. A job may have to wait.` : "";
  byId("missing").hidden = !missing.length;
}, 5000);
