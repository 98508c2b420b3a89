// Statistics of a job's outcomes: scores, latencies, failures, and the share of each worker.

import { byId, h, show } from "./dom.js";
import { bar, button, empty, table } from "./parts.js";
import { Plot } from "./plots.js";
import { brief, count, figure, milliseconds, plural, rate, span } from "./words.js";

const WHOLE = { ticks: { precision: 0 } };
const histogram = new Plot(byId("histogram"), "bar");

const sampled = (told) => (told.is_sample ? ` From an even sample of ${count(told.looked_at)} items.` : "");

export function scores(told) {
  const found = told.scores;
  byId("histogram").parentElement.hidden = !found;
  byId("scores").parentElement.hidden = !found && told.looked_at > 0;
  show(byId("scores"), found ? h("p", { class: "dim" }, `Mean ${figure(found.mean)}, from ${figure(found.least)} to ${figure(found.most)}, ${plural(found.n, "item")}.${sampled(told)}`) : empty("No scores yet."));
  if (!found) return;
  const names = found.bins.map((bin) => (bin.low === bin.high ? figure(bin.low) : `${figure(bin.low)} – ${figure(bin.high)}`));
  byId("histogram").setAttribute("aria-label", `Scores: ${found.bins.map((bin, at) => bin.count && `${names[at]}: ${bin.count}`).filter(Boolean).join(", ")}`);
  const edges = found.bins.map((bin) => figure(bin.low));
  histogram.draw(edges, [{ label: "items", tone: "accent", data: found.bins.map((bin) => bin.count), borderWidth: 1, borderRadius: 3, categoryPercentage: 0.92, barPercentage: 0.98, maxBarThickness: 90 }], { titles: names, y: WHOLE });
}

export function latency(told, isOver) {
  const found = told.latency_ms;
  if (!found) return show(byId("latency"), empty(isOver && told.looked_at ? "No item was computed: every answer came from the cache." : "No item has been computed yet."));
  const rows = ["p50", "p90", "p95", "p99", "most"];
  show(
    byId("latency"),
    h("p", { class: "dim" }, `${plural(found.n, "computed item")}.${sampled(told)}`),
    h(
      "div",
      { class: "percentiles" },
      rows.map((name) => h("div", { class: "meter" }, h("span", {}, name === "most" ? "max" : name), bar([[found[name] / (found.most || 1), "good"]], `${name === "most" ? "max" : name} ${milliseconds(found[name])}`), h("span", { class: "said-share" }, milliseconds(found[name])))),
    ),
  );
}

export function failures(told) {
  byId("failures").parentElement.hidden = !told.failures.length;
  return told.failures.map((failure) =>
    h(
      "div",
      { class: "failure", "data-key": failure.type },
      h("h3", {}, h("em", { class: "bad" }, failure.type), h("span", { class: "dim" }, plural(failure.count, "item")), failure.examples.length || told.looked_at ? button("Show items", "reason", failure.type) : null),
      failure.examples.length
        ? h("ul", {}, failure.examples.map((example) => h("li", {}, example.message, h("span", { class: "dim" }, ` (${example.id ?? `item ${example.index}`}${example.attempts > 1 ? `, ${plural(example.attempts, "try", "tries")}` : ""}${example.worker ? `, ${example.worker}` : ""})`))))
        : h("p", { class: "dim" }, told.looked_at ? "The sample has no item with this reason; the list of items has them." : "Only their number is kept."),
    ),
  );
}

export function shares(job) {
  const rows = Object.entries(job.workers).map(([name, share]) => ({ name, ...share }));
  if (!rows.length) return empty(job.cached ? "No worker was needed: every answer came from the cache." : "No worker has finished an item yet.");
  const all = rows.reduce((sum, row) => sum + row.items, 0) || 1;
  return table(
    "Workers",
    [
      ["Worker", (row) => h("b", {}, row.name)],
      ["Items", (row) => brief(row.items), true],
      ["Share", (row) => bar([[row.items / all, "good"]], `${Math.round((100 * row.items) / all)} %`)],
      ["Time", (row) => span(row.seconds), true],
      ["Rate", (row) => (row.seconds ? rate(row.items / row.seconds) : "–"), true],
    ],
    rows.sort((one, other) => other.items - one.items),
    (row) => row.name,
  );
}

