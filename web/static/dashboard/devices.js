// Device cards: loaded model, current chunk and utilisation of each device worker.

import { h } from "./dom.js";
import { bar, empty, word } from "./parts.js";
import { gigabytes, percent, plural, rate, span } from "./words.js";

const meter = (name, share, said, tone = "good") => h("div", { class: "meter" }, h("span", {}, name), bar([[share ?? 0, tone]], `${name} ${said}`), h("span", { class: "said-share" }, said));

export function devices(now, busy) {
  if (!now.devices.length) return empty("No device worker is running. Start some with ", h("code", {}, "make up"), " or ", h("code", {}, "python -m workers.launch device"), ".");
  return h("ul", { class: "cards" }, now.devices.map((device) => card(device, now, busy.share(device.queue))));
}

function card(device, now, share) {
  const held = device.mode !== "open";
  const last = device.models.at(-1);
  const model = device.loading ? `loading ${device.loading}` : last ? [last, weights(device.weights[last])] : "no model loaded";
  return h(
    "li",
    { class: "card", "data-key": device.queue },
    h(
      "h3",
      {},
      device.queue,
      " ",
      held ? word(device.mode, "warn") : device.state === "ready" ? word(device.busy ? "busy" : "idle", device.busy ? "busy" : null) : word(device.state, "warn"),
    ),
    h("div", { class: "meters" }, meter("Busy", share, percent(share)), (device.gpus ?? []).map((gpu, at) => gpuMeters(gpu, device.gpus.length > 1 ? ` ${isIndex(gpu.device) ? gpu.device : at}` : ""))),
    h("dl", { class: "pairs" }, pair("Model", model), pair("On", device.devices.length ? placed(device.devices) : "CPU"), pair("Now", current(device, now)), pair("Rate", rate(device.rate))),
  );
}

/** Format the version of weights: the number of a rollout's version, the first 8 characters of a fingerprint or revision. */
function weights(version) {
  if (!version) return null;
  const [, number] = version.match(/^[^:]+:(\d+):\d+$/) ?? [];
  return h("span", { class: "dim", title: version }, number ? ` version ${number}` : ` ${version.slice(0, 8)}`);
}

const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

const isIndex = (device) => /^\d+$/.test(device);

/** Format device names: numbers, or the first 12 characters of each UUID. */
const placed = (names) => h("span", { title: names.every(isIndex) ? null : names.join(", ") }, names.every(isIndex) ? `GPU ${names.join(", ")}` : names.map((name) => name.slice(0, 12)).join(", "));

function gpuMeters(gpu, number) {
  const memory = gpu.memory_total_mb ? gpu.memory_used_mb / gpu.memory_total_mb : 0;
  return [meter(`GPU${number}`, gpu.utilisation, percent(gpu.utilisation)), meter("Memory", memory, `${gigabytes(gpu.memory_used_mb)} of ${gigabytes(gpu.memory_total_mb)} GB`)];
}

/** The chunk that a device runs, if its worker reports it. */
function current(device, now) {
  const chunk = device.running?.[0];
  if (!chunk) return device.busy ? "busy" : "idle";
  return h("a", { href: `/jobs/${chunk.job}` }, `${chunk.kind} ${chunk.stage}, ${plural(chunk.items, "item")}, ${span(Math.max(0, now.at - chunk.since))}`);
}
