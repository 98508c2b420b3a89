// Section of a rollout: its sample queue over time, and the age of the samples that its trainer takes.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { isActive, tile } from "./parts.js";
import { Plot } from "./plots.js";
import { brief, clock, figure, percent, span } from "./words.js";

const LOOK_MS = 2000;
const MOST_POINTS = 600;

export class Rollout {
  constructor(id) {
    Object.assign(this, { id, points: [], timer: null, isHeld: false });
    const plots = byId("plots");
    const canvas = (name) => h("canvas", { id: name, role: "img", "aria-label": name });
    show(
      plots,
      h("div", {}, h("h2", {}, "Queue ", h("small", {}, "since this page was opened")), h("div", { class: "chart", "data-kept": true }, canvas("queue-plot"))),
      h("div", {}, h("h2", {}, "Sample age ", h("small", {}, "versions, batch by batch")), h("p", { class: "empty", id: "no-age" }, "No trainer has taken a batch yet."), h("div", { class: "chart", id: "age-box", "data-kept": true }, canvas("age-plot"))),
    );
    plots.hidden = false;
    this.queue = new Plot(byId("queue-plot"), "line");
    this.age = new Plot(byId("age-plot"), "line");
  }

  async look() {
    clearTimeout(this.timer);
    this.wait(); // before the request: a failed request must not end the polling
    const [told, batches] = await Promise.all([ask(`/v1/rollouts/${this.id}`), ask(`/v1/rollouts/${this.id}/batches`)]);
    this.isHeld = told.statistics.is_paused;
    this.draw(told, batches.batches);
    if (!isActive(told.job)) clearTimeout(this.timer);
  }

  /** Schedule the next request. A hidden page sends none until it is visible again. */
  wait() {
    this.timer = setTimeout(() => (document.hidden ? this.wait() : this.look().catch(() => {})), LOOK_MS);
  }

  draw({ statistics, sync }, batches) {
    const metrics = statistics.metrics;
    show(
      byId("special"),
      h("h2", {}, "Samples"),
      h("dl", { class: "tiles" }, [
        tile("In the queue", brief(statistics.queue_size), `${percent(statistics.queue_utilization)} of ${brief(statistics.max_queue_size)}`),
        tile("In progress", brief(statistics.samples_under_way), statistics.is_paused ? "paused" : `${brief(statistics.total_produced)} produced so far`),
        tile("Taken", brief(statistics.total_consumed), `${brief(statistics.leased_samples)} with the trainer`),
        tile("Dropped", brief(statistics.dropped_samples), "too stale"),
        tile("Version", brief(statistics.current_param_version), sync ? `${sync.state}${sync.sync_s ? ` in ${span(sync.sync_s)}` : ""}` : "set by the trainer"),
        tile("Trainer idle", percent(metrics["fully_async/trainer/idle_ratio"]), "of its time"),
      ]),
    );
    this.points.push({ at: Date.now() / 1000, waiting: statistics.queue_size, making: statistics.samples_under_way, leased: statistics.leased_samples });
    if (this.points.length > MOST_POINTS) this.points.shift();
    const last = this.points.at(-1);
    byId("queue-plot").setAttribute("aria-label", `${last.waiting} samples queued, ${last.making} in progress, ${last.leased} with the trainer`);
    this.queue.draw(
      this.points.map((point) => clock(point.at)),
      [
        { label: "queued", tone: "accent", data: this.points.map((point) => point.waiting) },
        { label: "in progress", tone: "dim", fill: false, data: this.points.map((point) => point.making) },
        { label: "with the trainer", tone: "warn", fill: false, borderDash: [3, 3], data: this.points.map((point) => point.leased) },
      ],
      { legend: true, y: { ticks: { precision: 0 } } },
    );
    byId("no-age").hidden = batches.length > 0;
    byId("age-box").hidden = !batches.length;
    if (!batches.length) return;
    byId("age-plot").setAttribute("aria-label", `Mean age of the last batch ${figure(batches.at(-1).mean_age)} versions`);
    this.age.draw(
      batches.map((_, at) => at + 1 - batches.length),
      [
        { label: "mean", tone: "accent", data: batches.map((batch) => batch.mean_age) },
        { label: "oldest", tone: "dim", fill: false, borderDash: [3, 3], data: batches.map((batch) => batch.max_age) },
      ],
      { legend: true },
    );
  }
}
