// Components shared by several pages: tiles, bars, tables, buttons, job rows.

import { h } from "./dom.js";
import { ago, brief, count, percent, plural, rate, span } from "./words.js";

// States of jobs as the server defines them.
const ACTIVE = document.body.dataset.active.split(" ");

export const isActive = (job) => ACTIVE.includes(job.state);

export const tile = (name, value, note, tone) =>
  h("div", { class: "tile", "data-key": name, "data-tone": tone }, h("dt", {}, name), h("dd", {}, value), h("dd", { class: "note" }, note ?? ""));

/** A stacked bar of shares: [[share, tone], ...]. */
export const bar = (shares, label) =>
  h(
    "div",
    { class: "bar", role: "img", "aria-label": label },
    shares.filter(([share]) => share > 0).map(([share, tone]) => h("i", { "data-tone": tone, width: `${Math.min(100, 100 * share).toFixed(2)}%` })),
  );

export function progress(job) {
  const done = job.ok + job.failed;
  if (job.open && isActive(job)) {
    const share = done ? job.failed / done : 0;
    return bar([[done ? 1 - share : 0, "open"], [share, "bad"]], `${count(done)} done, open-ended`);
  }
  const total = job.total || 1;
  const cached = Math.min(job.cached, job.ok);
  const shares = [[(job.ok - cached) / total, "good"], [cached / total, "cached"], [job.failed / total, "bad"]];
  return bar(shares, `${percent(done / total)} done, ${plural(job.failed, "item")} failed, ${count(job.cached)} from the cache`);
}

export const word = (text, tone) => h("span", { class: "word", "data-tone": tone }, text);

const STATE_TONES = { running: "busy", finishing: "busy", reopening: "busy", failed: "bad", done: "good" };

export const stateOf = (job) => word(job.paused && isActive(job) ? "paused" : job.state, job.paused && isActive(job) ? "warn" : STATE_TONES[job.state]);

export const nameOf = (job) => String(job.metadata?.name ?? job.metadata?.run ?? job.id.slice(0, 8));

/** Format the failure reasons of a job, the most frequent first. */
function reasons(job) {
  const found = Object.entries(job.reasons).sort(([, one], [, other]) => other - one).map(([type]) => type);
  return found.length > 2 ? `${found[0]}, ${found.length - 1} other reasons` : found.join(", ");
}

/** A job as a row of a list; the whole row is a link. */
export function jobRow(job, now) {
  const done = job.ok + job.failed;
  const facts = [];
  if (isActive(job)) {
    if (job.rate) facts.push(rate(job.rate));
    if (job.eta_s !== null) facts.push(`${span(job.eta_s)} left`);
  } else if (job.ended_at) {
    facts.push(`took ${span(job.ended_at - job.created_at)}`);
  }
  if (job.cached) facts.push(`${brief(job.cached)} cached`);
  if (job.reason && job.reason !== job.state) facts.push(job.reason);
  return h(
    "li",
    { "data-key": job.id },
    h(
      "a",
      { class: "job", href: `/jobs/${job.id}`, title: job.id },
      h("span", { class: "name" }, h("b", {}, nameOf(job)), " ", h("span", { class: "dim" }, job.metadata?.benchmark && job.kind !== "benchmark" ? `${job.kind} · benchmark` : job.kind)),
      h("span", { class: "state" }, stateOf(job)),
      progress(job),
      h(
        "span",
        { class: "done" },
        job.open && isActive(job) ? `${brief(done)} done` : `${brief(done)} of ${brief(job.total)}`,
        job.failed ? [" · ", h("em", {}, `${brief(job.failed)} failed`)] : "",
        job.failed ? h("em", { class: "why" }, reasons(job)) : "",
      ),
      h("span", { class: "facts dim" }, facts.join(" · ")),
      h("span", { class: "when dim" }, ago(job.created_at, now)),
    ),
  );
}

export const jobList = (jobs, now) => h("ul", { class: "joblist" }, jobs.map((job) => jobRow(job, now)));

/** A table with its own scroll bar. Columns: [title, function from a row to its cell, true for a number, or a CSS class]. */
export const table = (label, columns, rows, keyOf) =>
  h(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map(([title, , sort]) => h("th", { scope: "col", class: classOf(sort) }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", { "data-key": keyOf(row) }, columns.map(([, cell, sort]) => h("td", { class: classOf(sort) }, cell(row)))))),
    ),
  );

const classOf = (sort) => (sort === true ? "number" : sort);

export const empty = (...text) => h("p", { class: "empty" }, ...text);

export const button = (text, action, value, tone) => h("button", { type: "button", "data-action": action, "data-value": value, class: tone }, text);
