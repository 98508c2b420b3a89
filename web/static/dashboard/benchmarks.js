// Benchmarks page: each figure over its runs with its usual range, regressions, and the reports.

import { act, onActions } from "./actions.js";
import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { repeat } from "./live.js";
import { bar, button, empty, table, word } from "./parts.js";
import { Plot } from "./plots.js";
import { ago, count, date, day, figure, percent, plural, span } from "./words.js";

const AGAIN_MS = 5000;
const TONES = { running: "busy", queued: null, done: "good", failed: "bad", cancelled: "warn", skipped: "warn" };
const plots = new Map();

/** Request a path; null if this server has no benchmarks. */
const maybe = (path) => ask(path).catch((problem) => (problem.status === 404 ? null : Promise.reject(problem)));

async function look() {
  const [suites, runs, figures] = await Promise.all([maybe("/v1/benchmarks"), maybe("/v1/benchmarks/runs?limit=50"), maybe("/v1/benchmarks/figures")]);
  regressions(suites?.regressions ?? []);
  show(byId("suites"), suites?.benchmarks?.length ? offered(suites.benchmarks) : empty("This server runs no benchmarks."));
  show(byId("runs"), runs?.runs?.length ? runTable(runs.runs) : empty("No benchmark has run yet. Start one above, or wait for its schedule."));
  drawFigures((figures?.figures ?? []).toSorted((one, other) => other.is_regression - one.is_regression));
}

/** Key of a figure's history. A figure has a history per basis, since suites measure it with different parameters. */
const keyOf = ({ figure: name, basis }) => `${name} ${basis}`;

/** Format a value in full, because 7,934 beside 12.3K is hard to compare. */
const measured = (value) => (Math.abs(value) >= 1000 ? count(value) : figure(value));

/** Let a long name wrap between its parts. */
const named = (name) => name.split("/").flatMap((part, at) => (at ? ["/", h("wbr"), part] : [part]));

const apart = ({ value, usual }) => (usual > 0 ? `${percent(Math.abs(value / usual - 1))} ${value < usual ? "below" : "above"} the usual ${measured(usual)}` : `usually ${measured(usual)}`);

function regressions(found) {
  show(
    byId("regressions"),
    found.map((each) =>
      h(
        "p",
        { class: "said", "data-key": keyOf(each) },
        h("b", {}, named(each.figure)),
        ` (${each.benchmark}) got worse: ${measured(each.value)} ${each.unit}, ${apart(each)} (${measured(each.low)} to ${measured(each.high)}).`,
      ),
    ),
  );
}

const now = () => Date.now() / 1000;

/** Tables of suites: sets of scenarios, and, folded, each scenario alone. */
function offered(suites) {
  const isSet = (suite) => suite.scenarios.length > 1 || suite.scenarios[0] !== suite.name;
  const [sets, single] = [suites.filter(isSet), suites.filter((suite) => !isSet(suite))];
  return [
    sets.length ? suiteTable("Suites", sets) : null,
    single.length ? h("details", { class: "folded", "data-key": "single" }, h("summary", {}, `${plural(single.length, "scenario")} alone`), suiteTable("Scenarios", single)) : null,
  ];
}

const suiteTable = (label, suites) =>
  table(
    label,
    [
      ["Name", (suite) => [h("b", {}, suite.name), h("br"), h("span", { class: "dim" }, suite.description, suite.scenarios.length > 1 ? ` ${plural(suite.scenarios.length, "scenario")}: ${suite.scenarios.join(", ")}.` : "")], "wide"],
      ["Scheduled", (suite) => (suite.schedule ? [h("code", {}, suite.schedule), suite.next_at ? h("span", { class: "dim" }, ` next ${day(suite.next_at)}`) : ""] : "on request")],
      ["Last run", (suite) => (suite.last_run ? [state(suite.last_run), h("span", { class: "dim" }, ` ${ago(suite.last_run.created_at, now())}`)] : "never")],
      ["", (suite) => button("Run now", "run", suite.name)],
    ],
    suites,
    (suite) => suite.name,
  );

const state = (run) => word(run.state, TONES[run.state]);

const runTable = (runs) =>
  table(
    "Runs",
    [
      ["Run", (run) => [h("b", {}, run.name), h("span", { class: "dim" }, ` ${run.trigger}`)]],
      ["State", (run) => [state(run), run.note ? h("span", { class: "dim" }, ` ${run.note}`) : ""]],
      ["Progress", (run) => bar([[run.total ? run.done / run.total : 0, "good"]], `${run.done} of ${run.total}`)],
      ["When", (run) => day(run.started_at ?? run.created_at)],
      ["Took", (run) => (run.ended_at && run.started_at ? span(run.ended_at - run.started_at) : "–"), true],
      ["Worse", (run) => (run.regressions ? word(plural(run.regressions, "figure"), "bad") : "–"), true],
      ["Reports", (run) => (run.files?.length ? run.files.map((name, at) => [at ? ", " : "", h("a", { href: `/v1/benchmarks/runs/${encodeURIComponent(run.id)}/files/${encodeURIComponent(name)}` }, name)]) : "–"), "wide"],
    ],
    runs,
    (run) => run.id,
  );

function drawFigures(figures) {
  show(
    byId("figures"),
    figures.length
      ? figures.map((each) =>
          h(
            "div",
            { class: "card", "data-key": keyOf(each) },
            h("h3", {}, h("span", {}, named(each.figure)), each.is_regression ? word("worse", "bad") : null),
            h("p", { class: "dim" }, described(each)),
            h("div", { class: "chart", "data-kept": true }, h("canvas", { role: "img", "aria-label": described(each) })),
          ),
        )
      : empty("No figure has been measured yet."),
  );
  for (const each of figures) draw(each);
}

function described({ benchmark, points, unit, better, band }) {
  const last = points.findLast((point) => !point.is_disturbed) ?? points.at(-1);
  const usual = band ? `, usually ${measured(band[0])} to ${measured(band[1])}` : ", too few runs for a band";
  const direction = better === "neither" ? "" : `; ${better} is better`;
  return last ? `${benchmark}: ${measured(last.value)} ${unit}${usual}${direction}` : "no runs yet";
}

function draw({ points, band, is_regression: isWorse, ...each }) {
  const name = keyOf(each);
  const canvas = [...byId("figures").querySelectorAll("[data-key]")].find((node) => node.dataset.key === name)?.querySelector("canvas");
  if (!canvas) return;
  if (plots.get(name)?.canvas !== canvas) {
    plots.get(name)?.end();
    plots.set(name, new Plot(canvas, "line"));
  }
  const flat = (value) => points.map(() => value);
  const newest = points.findLastIndex((point) => !point.is_disturbed);
  const values = points.map((point) => point.value);
  // Keep a margin, so that the noise of a steady figure does not look like a jump.
  const room = 0.05 * Math.max(...values.map(Math.abs));
  const edge = { borderWidth: 0, pointRadius: 0, tone: "dim" };
  plots.get(name).draw(
    points.map((point) => date(point.at)),
    [
      { label: "value", tone: "accent", fill: false, data: points.map((point) => (point.is_disturbed ? null : point.value)), spanGaps: true, dots: points.map((_, at) => (isWorse && at === newest ? "bad" : "accent")) },
      { label: "disturbed by other jobs", tone: "dim", fill: false, data: points.map((point) => (point.is_disturbed ? point.value : null)), showLine: false, dots: flat("dim") },
      ...(band ? [{ ...edge, label: "usual, high", data: flat(band[1]), fill: "+1" }, { ...edge, label: "usual, low", data: flat(band[0]), fill: false }] : []),
    ],
    { y: { beginAtZero: false, suggestedMin: Math.min(...values) - room, suggestedMax: Math.max(...values) + room }, titles: points.map((point) => day(point.at)), smooth: 0 },
  );
}

const refresh = repeat(look, AGAIN_MS);

onActions(byId("main"), {
  run: async (name) => {
    await act(`/v1/benchmarks/${encodeURIComponent(name)}/runs`, "POST", (run) => (run.note ? `${run.name}: ${run.state}, ${run.note}` : `${run.name} is ${run.state}.`));
    await refresh();
  },
});
