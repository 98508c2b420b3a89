// Sections of single job kinds: the sample queue of a rollout, the calibration of a judge, episodes, model statistics.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { empty, table, tile } from "./parts.js";
import { Rollout } from "./rollout.js";
import { brief, figure, percent, plural, span } from "./words.js";

//: Maximum number of items of a job for which the page requests these figures, because the server reads every item for them.
const MOST_READ = 10_000;

let rollout = null;
let isAsking = false;

/** Whether generation of the rollout is paused. The job's record does not have this. */
export const isHeld = () => rollout?.isHeld ?? false;

/** Update the section. At most one request is in flight, because the server may read every item for it. */
export async function special(job) {
  if (isAsking) return;
  isAsking = true;
  try {
    await showSpecial(job);
  } finally {
    isAsking = false;
  }
}

async function showSpecial(job) {
  const place = byId("special");
  if (job.kind === "rollout") {
    rollout ??= new Rollout(job.id);
    await rollout.look();
  } else if (job.kind === "judge") {
    show(place, h("h2", {}, "Agreement with labels"), await agreement(job));
  } else if (job.kind === "inference") {
    show(place, h("h2", {}, "Model statistics"), await statistics(job));
  } else if (job.kind === "score") {
    const found = await episodes(job);
    if (found) show(place, h("h2", {}, "Episodes"), found);
    else return;
  } else {
    return;
  }
  place.hidden = false;
}

async function agreement(job) {
  if (job.total > MOST_READ) return empty(`Not computed automatically for ${brief(job.total)} items. Request it: GET /v1/jobs/${job.id}/calibration`);
  let told;
  try {
    told = await ask(`/v1/jobs/${job.id}/calibration`);
  } catch (problem) {
    return empty(problem.message);
  }
  return h("dl", { class: "tiles" }, [
    tile("Agreement", percent(told.agreement), `${plural(told.n, "item")} with a label`),
    tile("Kappa", figure(told.kappa), told.weighted_kappa === null ? "" : `weighted ${figure(told.weighted_kappa)}`),
    tile("Rank correlation", figure(told.spearman), "Spearman"),
    tile("Mean error", figure(told.mean_error), "score minus label"),
    told.without_score ? tile("Without a verdict", brief(told.without_score), "items with a label") : null,
  ]);
}

async function statistics(job) {
  if (job.total > MOST_READ) return empty(`Not computed automatically for ${brief(job.total)} rows. Request them: GET /v1/jobs/${job.id}/statistics`);
  const { workers, total } = await ask(`/v1/jobs/${job.id}/statistics`).catch(() => ({ workers: [], total: null }));
  if (!total) return empty("This job has no statistics.");
  const rows = [...workers, { worker: "all", ...total }];
  return table(
    "Model statistics",
    [
      ["Worker", (row) => h("b", {}, row.worker)],
      ["Rows", (row) => brief(row.contexts), true],
      ["Accuracy", (row) => percent(row.success_rate), true],
      ["Time per row", (row) => span(row.average_inference_time), true],
      ["Tokens in", (row) => brief(row.prompt_tokens), true],
      ["Tokens out", (row) => brief(row.completion_tokens), true],
      ["Tokens/s", (row) => figure(row.tokens_per_s), true],
    ],
    rows,
    (row) => row.worker,
  );
}

/** The episodes of the first items, for a policy's job; null for other scores. */
async function episodes(job) {
  if (!job.ok) return null;
  const { items } = await ask(`/v1/jobs/${job.id}/items?limit=12`);
  const found = items.flatMap((row) => (row.value?.episodes ?? []).map((episode, trial) => ({ row, trial, ...episode })));
  if (!found.length) return null;
  const successes = found.filter((episode) => episode.success).length;
  return [
    h("p", { class: "dim" }, `${successes} of ${plural(found.length, "episode")} succeeded${items.length < job.ok ? ", among the first items" : ""}.`),
    h(
      "ul",
      { class: "videos" },
      found.slice(0, 24).map((episode) =>
        h(
          "li",
          { "data-key": `${episode.row.index}-${episode.trial}` },
          h(
            "figure",
            {},
            episode.video ? h("img", { src: `/v1/jobs/${job.id}/files/${episode.video}`, alt: `Video of an episode: ${episode.instruction}`, loading: "lazy" }) : null,
            h("figcaption", {}, h("b", {}, episode.row.id ?? `#${episode.row.index}`), ` ${episode.success ? "succeeded" : "failed"} in ${plural(episode.steps, "step")}`),
          ),
        ),
      ),
    ),
  ];
}
