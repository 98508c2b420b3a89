// Overview page: health, jobs, throughput, devices, queues, outside APIs, workers.

import { act, onActions, sure } from "./actions.js";
import { ask } from "./api.js";
import { Busy } from "./busy.js";
import { byId, h, show } from "./dom.js";
import { devices } from "./devices.js";
import { connection, Stream } from "./live.js";
import { Plot } from "./plots.js";
import { empty, jobList, tile } from "./parts.js";
import { brief, clock, count, money, percent, plural, rate, span } from "./words.js";
import { profiles, queues, workers } from "./fleet.js";

const MOST_POINTS = 400;
const busy = new Busy();
const points = [];
const pace = new Plot(byId("pace"), "line", { legend: true, y: { title: { display: false } } });

function draw(now) {
  busy.look(now.at, now.devices, (device) => device.queue);
  busy.look(now.at, now.workers.filter((worker) => worker.pool !== "device"), (worker) => worker.name);
  show(byId("health"), health(now));
  show(byId("tiles"), tiles(now));
  show(byId("jobs"), now.jobs.length ? jobList(now.jobs.slice(0, 12), now.at) : noJobs());
  show(byId("devices"), devices(now, busy));
  show(byId("queues"), queues(now));
  show(byId("profiles"), profiles(now.profiles));
  show(byId("workers"), workers(now, busy));
  plot(now);
}

const noJobs = () => empty("No job has been submitted yet. ", h("a", { href: "/submit" }, "Submit an example"), " to see one run.");

const waiting = (now) => now.pools.reduce((sum, pool) => sum + pool.items, 0) + now.queues.reduce((sum, queue) => sum + queue.items, 0);

/** Whether a note says that the storage is unavailable, which is trouble and not only a remark. */
const isStorage = (note) => note.startsWith("storage ");

function health(now) {
  const atWork = now.devices.filter((device) => device.busy).length;
  const held = now.queues.filter((queue) => queue.mode !== "open");
  const open = now.profiles.filter((profile) => profile.circuit.state !== "closed");
  const troubles = [
    ...now.missing,
    ...held.map((queue) => `${queue.queue} is ${queue.mode}`),
    ...now.notes.filter(isStorage),
    ...open.map((profile) => `circuit of API ${profile.name} is open: ${profile.circuit.reason}`),
  ];
  const notes = now.notes.filter((note) => !isStorage(note));
  const tone = now.missing.length ? "bad" : troubles.length ? "warn" : "good";
  const title = { bad: "Not ready", warn: "Working, with limits", good: "Healthy" }[tone];
  const jobs = now.active ? `${plural(now.active, "job")} running` : "no job is running";
  return [
    h("h1", { "data-tone": tone, "aria-live": "polite" }, h("span", { class: "dot", "aria-hidden": "true" }), title),
    h("p", { class: "lead" }, troubles.length ? `${troubles.join("; ")}.` : `${jobs}, ${atWork} of ${plural(now.devices.length, "device")} busy.`.replace(/^n/, "N")),
    notes.length ? h("p", { class: "note" }, notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}. `)) : null,
  ];
}

/** Format failure reasons: the first, and the number of other reasons. */
function why(reasons) {
  const [first, ...others] = Object.keys(reasons);
  return others.length ? `${first}, ${plural(others.length, "other reason")}` : (first ?? "");
}

function tiles(now) {
  const wait = waiting(now);
  const oldest = Math.max(-1, ...[...now.pools, ...now.queues].map((each) => each.oldest_s ?? -1));
  const shares = now.devices.map((device) => busy.share(device.queue) ?? 0);
  const share = shares.length ? shares.reduce((sum, each) => sum + each, 0) / shares.length : null;
  const { hits, items, failed, calls_saved: saved, jobs, reasons } = now.recent;
  const usages = now.profiles.map((profile) => profile.usage_today);
  const cost = {};
  for (const usage of usages) for (const [currency, amount] of Object.entries(usage.cost)) cost[currency] = (cost[currency] ?? 0) + amount;
  return [
    tile("Throughput", now.rate ? rate(now.rate) : "0/s", "items, last 8 s"),
    tile("Waiting", brief(wait), wait && oldest >= 0 ? `oldest ${span(oldest)}` : "queues are empty"),
    tile("Active jobs", brief(now.active), `${plural(jobs, "recent job")}`),
    tile("Recently failed", brief(failed), failed ? why(reasons) : "no items", failed ? "bad" : null),
    tile("Devices busy", percent(share), `${now.devices.filter((device) => device.busy).length} of ${now.devices.length} busy now`),
    tile("From the cache", items ? percent(hits / items) : "–", saved ? `${plural(saved, "API call")} saved` : "no API call saved"),
    tile("Spent today", money(cost) ?? "0", `${plural(usages.reduce((sum, usage) => sum + usage.calls, 0), "API call")}`),
  ];
}

function plot(now) {
  points.push({ at: now.at, rate: now.rate, waiting: waiting(now) });
  if (points.length > MOST_POINTS) points.shift();
  byId("pace").setAttribute("aria-label", `${rate(now.rate)} now, ${count(waiting(now))} items waiting; maximum ${rate(Math.max(...points.map((point) => point.rate)))} since ${clock(points[0].at)}`);
  pace.draw(
    points.map((point) => clock(point.at)),
    [
      { label: "items/s", tone: "accent", data: points.map((point) => point.rate), yAxisID: "y" },
      { label: "items waiting", tone: "dim", data: points.map((point) => point.waiting), yAxisID: "right", fill: false, borderDash: [3, 3] },
    ],
    { legend: true, right: true },
  );
}

onActions(byId("main"), {
  pause: async (queue) => (await sure(`Pause ${queue}?`, "It gets no work until it is resumed. Running chunks finish; waiting chunks go to other queues.", "Pause")) && act(`/v1/queues/${queue}/pause`, "POST"),
  resume: (queue) => act(`/v1/queues/${queue}/resume`, "POST"),
});

new Stream("/v1/overview/events", {
  talks: true,
  poll: async () => draw(await ask("/v1/overview")),
  on: {
    snapshot: (now) => {
      draw(now);
      connection("live");
    },
    trouble: ({ detail }) => connection("away", detail),
  },
});
