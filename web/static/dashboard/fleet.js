// Tables of queues, outside APIs and workers.

import { h } from "./dom.js";
import { button, empty, table, word } from "./parts.js";
import { brief, count, megabytes, milliseconds, money, percent, plural, rate, span } from "./words.js";

const MODES = { paused: "warn", draining: "warn" };

export function queues(now) {
  const pools = now.pools.filter((pool) => pool.items);
  return [
    table(
      "Queues",
      [
        ["Queue", (queue) => h("b", {}, queue.queue)],
        ["Waiting", (queue) => (queue.items ? `${brief(queue.items)} in ${plural(queue.chunks, "chunk")}` : "–"), true],
        ["Oldest", (queue) => span(queue.oldest_s), true],
        ["Running", (queue) => (queue.running ? plural(queue.running, "chunk") : "–"), true],
        ["Rate", (queue) => (queue.rate ? rate(queue.rate) : "–"), true],
        ["Workers", readers, true],
        ["", (queue) => [queue.mode === "open" ? button("Pause", "pause", queue.queue) : [word(queue.mode, MODES[queue.mode]), " ", button("Resume", "resume", queue.queue)]]],
      ],
      now.queues,
      (queue) => queue.queue,
    ),
    pools.length
      ? h("p", { class: "dim" }, "Pending, not in a chunk yet: ", pools.map((pool) => `${brief(pool.items)} for ${pool.pool} of ${plural(pool.jobs, "job")}, oldest ${span(pool.oldest_s)}`).join("; "), ".")
      : null,
  ];
}

/** The workers of a queue. A queue without workers is a problem, except `benchmark`: its worker starts on demand. */
function readers(queue) {
  if (queue.workers.length) return plural(queue.workers.length, "worker");
  return queue.queue === "benchmark" && !queue.items ? h("span", { class: "dim" }, "starts on demand") : word("none", "bad");
}

export function profiles(rows) {
  if (!rows.length) return empty("No API profile is configured: set ", h("code", {}, "ASSAY_PROFILES_FILE"), ".");
  const hasLatency = rows.some((profile) => profile.latency_ms);
  const hasRefusals = rows.some((profile) => profile.refused_429 !== undefined);
  return table(
    "Outside APIs",
    [
      ["Profile", (profile) => [h("b", {}, profile.name), " ", h("span", { class: "dim" }, profile.host)]],
      ["State", (profile) => circuit(profile)],
      ["In flight", (profile) => `${count(profile.in_flight)} of ${count(profile.ceiling)}`, true],
      ["Waiting", (profile) => (profile.waiting ? brief(profile.waiting) : "–"), true],
      ["Limits", (profile) => limits(profile.limits), true],
      hasLatency && ["p50 / p95", (profile) => `${milliseconds(profile.latency_ms?.p50)} / ${milliseconds(profile.latency_ms?.p95)}`, true],
      hasRefusals && ["429s", (profile) => brief(profile.refused_429), true],
      ["Calls today", (profile) => brief(profile.usage_today.calls), true],
      ["Tokens", (profile) => brief(profile.usage_today.prompt_tokens + profile.usage_today.completion_tokens), true],
      ["Spent", (profile) => money(profile.usage_today.cost) ?? "–", true],
    ].filter(Boolean),
    rows,
    (profile) => profile.name,
  );
}

function circuit(profile) {
  if (profile.circuit.state !== "closed") return h("span", { title: profile.circuit.reason }, word(`circuit open ${span(profile.circuit.wait_s)}`, "bad"));
  return profile.paused_s > 0 ? word(`paused ${span(profile.paused_s)}`, "warn") : word("ready", "good");
}

function limits({ rpm, tpm, concurrency }) {
  const said = [rpm && `${brief(rpm)} requests/min`, tpm && `${brief(tpm)} tokens/min`, `${brief(concurrency)} in flight`];
  return said.filter(Boolean).join(", ");
}

export function workers(now, busy) {
  if (!now.workers.length) return empty("No worker is running. Start some with ", h("code", {}, "make up"), ".");
  const hasMemory = now.workers.some((worker) => worker.memory_mb);
  const hasCpu = now.workers.some((worker) => worker.cpu_s);
  return [
    h("p", { class: "dim" }, [pools(now.workers), ...policies(now.policies)].join(" · ")),
    table(
      "Workers",
      [
        ["Worker", (worker) => h("b", {}, worker.name)],
        ["Pool", (worker) => worker.pool],
        ["State", (worker) => word(worker.state, worker.state === "ready" ? null : "warn")],
        ["Tasks", (worker) => (worker.active ? count(worker.active) : "–"), true],
        ["Busy", (worker) => percent(busy.share(worker.name)), true],
        ["Rate", (worker) => (worker.rate ? rate(worker.rate) : "–"), true],
        hasMemory && ["Memory", (worker) => megabytes(worker.memory_mb), true],
        hasCpu && ["CPU", (worker) => span(worker.cpu_s), true],
        ["Host", (worker) => worker.host],
        ["Pid", (worker) => worker.pid, true],
      ].filter(Boolean),
      now.workers,
      (worker) => worker.name,
    ),
  ];
}

function pools(rows) {
  const numbers = {};
  for (const worker of rows) numbers[worker.pool] = (numbers[worker.pool] ?? 0) + 1;
  return Object.entries(numbers).map(([pool, number]) => `${pool} ${number}`).join(" · ");
}

const policies = ({ connected, total_clients: all, busy }) => (all ? [`policy servers ${connected === all ? all : `${connected} of ${all}`}${busy ? `, ${busy} busy` : ""}`] : []);
