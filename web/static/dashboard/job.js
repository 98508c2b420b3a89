// Page of a job: progress, scores, latencies, failures, items, and the actions cancel, retry, pause and download.

import { act, onActions, say, sure } from "./actions.js";
import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { failures, latency, scores, shares } from "./figures.js";
import { Items } from "./items.js";
import { connection, Stream } from "./live.js";
import { button, empty, isActive, nameOf, progress, stateOf, tile } from "./parts.js";
import { isHeld, special } from "./special.js";
import { brief, count, day, money, percent, plural, rate, span } from "./words.js";

const id = byId("job").dataset.job;
const path = `/v1/jobs/${id}`;
/** Minimum milliseconds between two requests of the job, and of its summary, at any rate of events. */
const LOOK_MS = 500;
const SUM_MS = 2500;
/** Maximum rows that the browser saves; for more, the page shows a command line. The page does not know the user's token. */
const MOST_SAVED = 200000;
const TOKEN = "tokens" in byId("job").dataset ? '-H "Authorization: Bearer TOKEN" ' : "";

let job = null;
let summed = "";
let isBare = false;
let timers = {};
const items = new Items(path);

async function look() {
  job = await ask(path);
  draw();
  if (summed !== stamp()) later("sum", sum, summed && isActive(job) ? SUM_MS : 0);
  return isActive(job) ? "active" : "over";
}

const stamp = () => [job.state, job.epoch, job.ok, job.failed].join();

async function sum() {
  const now = stamp();
  const told = await ask(`${path}/summary`);
  summed = now;
  scores(told);
  latency(told, !isActive(job));
  show(byId("failures"), failures(told));
  items.offer(told.failures.map((failure) => failure.type));
  await special(job);
  isBare = job.kind === "rollout" && !told.looked_at; // its samples went into its queue
  for (const part of document.querySelectorAll("[data-of=items]")) part.hidden = isBare;
  if (isBare) return draw();
  if (!items.asked || !isActive(job) || items.isShort) await items.refresh();
}

/** Throttle: run the function after `ms` milliseconds, once for all calls until then. With 0, run it at once. */
function later(name, run, ms) {
  if (!ms) {
    clearTimeout(timers[name]);
    delete timers[name];
  }
  timers[name] ??= setTimeout(async () => {
    delete timers[name];
    try {
      await run();
      stream.answered();
    } catch (problem) {
      connection("away", problem.message);
    }
  }, ms);
}

function draw() {
  document.title = `${isActive(job) ? `${percent((job.ok + job.failed) / (job.total || 1))} ` : ""}Assay: ${nameOf(job)}`;
  const download = h("a", { class: "button", href: `${path}/${job.kind === "inference" ? "output" : "results"}`, "data-action": "download" }, "Download");
  const canRetry = ["done", "failed"].includes(job.state) && job.ok < job.total && job.kind !== "rollout";
  const isPaused = job.paused || isHeld();
  show(
    byId("head"),
    h(
      "div",
      { class: "title" },
      h("h1", {}, h("span", { class: "named", title: nameOf(job).length > 60 ? nameOf(job) : null }, nameOf(job)), " ", stateOf({ ...job, paused: isPaused })),
      h(
        "p",
        { class: "buttons" },
        isActive(job) && (isPaused ? button("Resume", "resume", id) : button("Pause", "pause", id)),
        isActive(job) && button(job.kind === "rollout" ? "End" : "Cancel", "cancel", id, "danger"),
        canRetry && button("Retry failed", "retry", id, "strong"),
        !isBare && download,
      ),
    ),
    h("p", { class: "dim" }, `${job.kind} · ${job.priority} · submitted ${day(job.created_at)} · ${job.id}${job.epoch ? ` · retried ${plural(job.epoch, "time")}` : ""}`),
    progress(job),
    job.reason ? h("p", {}, h("em", { class: "bad" }, `Ended early: ${job.reason}.`)) : null,
    Object.keys(job.metadata).some((key) => key !== "name") ? h("details", { "data-key": "metadata" }, h("summary", {}, "Metadata"), h("pre", {}, JSON.stringify(job.metadata, null, 2))) : null,
    job.notes.length ? h("p", { class: "note" }, job.notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}. `)) : null,
  );
  show(byId("tiles"), tiles());
  show(byId("shares"), shares(job));
}

function tiles() {
  const done = job.ok + job.failed;
  const isOpen = job.open && isActive(job);
  return [
    tile("Done", isOpen ? brief(done) : percent(job.total ? done / job.total : 0), isOpen ? "open-ended" : `${count(done)} of ${count(job.total)}`),
    isActive(job)
      ? tile("Time left", job.eta_s === null ? "–" : span(job.eta_s), job.started_at ? `started ${day(job.started_at)}` : "not started")
      : tile("Took", span((job.ended_at ?? job.created_at) - job.created_at), `ended ${job.ended_at ? day(job.ended_at) : ""}`),
    tile("Rate", job.rate ? rate(job.rate) : "–", plural(Object.keys(job.workers).length, "worker")),
    tile("Failed", brief(job.failed), job.failed ? `${percent(job.failed / Math.max(1, done))} of finished items` : "none", job.failed ? "alarm" : null),
    tile("From the cache", brief(job.cached), job.ok ? percent(job.cached / job.ok) : ""),
    job.usage ? tile("Cost", money(job.usage.cost) ?? "0", `${plural(job.usage.calls, "call")}, ${brief(job.usage.prompt_tokens + job.usage.completion_tokens)} tokens`) : null,
  ];
}

onActions(byId("main"), {
  cancel: async () => {
    const text = job.kind === "rollout" ? "Generation stops. Queued samples can still be taken." : "Finished items stay readable; the other items are not run.";
    if (await sure(`${job.kind === "rollout" ? "End" : "Cancel"} this job?`, text, job.kind === "rollout" ? "End it" : "Cancel it")) await act(path, "DELETE");
    await again();
  },
  retry: async () => {
    await act(`${path}/retry`, "POST", (told) => `${plural(told.retried, "item")} run${told.retried === 1 ? "s" : ""} again.`);
    await again();
  },
  pause: async () => (await act(job.kind === "rollout" ? `/v1/rollouts/${id}/pause` : `${path}/pause`, "POST")) && again(),
  resume: async () => (await act(job.kind === "rollout" ? `/v1/rollouts/${id}/resume` : `${path}/resume`, "POST")) && again(),
  reason: (type) => items.only(type),
});

byId("main").addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-action=download]");
  if (!link) return;
  event.preventDefault();
  await save(link.getAttribute("href"));
});

/** Save the rows as JSON lines, a format that a plain link cannot request. The browser holds them in memory meanwhile. */
async function save(from) {
  if (job.total > MOST_SAVED) return say(`${count(job.total)} rows are too many for a browser; download them by a program: curl ${TOKEN}-H "Accept: application/x-ndjson" ${location.origin}${from}`, "good");
  const reply = await fetch(from, { headers: { Accept: "application/x-ndjson" } }).catch(() => null);
  if (!reply?.ok) return say(`The download failed${reply ? `: the server answered ${reply.status}` : ""}.`);
  const link = h("a", { href: URL.createObjectURL(await reply.blob()), download: `${job.kind}-${id.slice(0, 8)}.jsonl` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function again() {
  summed = "";
  stream.open();
}

const tell = () => later("look", look, LOOK_MS);
const EVENTS = ["snapshot", "queued", "running", "progress", "paused", "resumed", "retried", "finishing", "done", "failed", "cancelled"];
const stream = new Stream(`${path}/events`, { poll: look, on: Object.fromEntries(EVENTS.map((name) => [name, tell])) });

look().catch((problem) => {
  if (problem.status === 404) {
    stream.close();
    connection("ended");
    show(byId("job"), h("h1", {}, `Job ${id.slice(0, 8)}`), empty(problem.message, " ", h("a", { href: "/jobs" }, "All jobs")));
  } else {
    connection("away", problem.message);
  }
});
// A job without progress sends no events, but its notes and times change.
setInterval(() => job && isActive(job) && !document.hidden && tell(), 3000);
