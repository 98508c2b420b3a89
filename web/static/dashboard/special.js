// What only some kinds of jobs have: a rollout's queue, a judge's agreement, a policy's episodes, what models did.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { empty, table, tile } from "./parts.js";
import { Rollout } from "./rollout.js";
import { brief, figure, percent, plural, span } from "./words.js";

//: Items of a job of which the server reads all to tell what is shown here; of more, it is left to whoever asks for it.
const MOST_READ = 10_000;

let rollout = null;
let isAsking = false;

/** Whether a rollout is held, which its job does not say. */
export const isHeld = () => rollout?.isHeld ?? false;

/** Asks again only after it was answered: what is asked for may be every item. */
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
    show(place, h("h2", {}, "What the models did"), await statistics(job));
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
  if (job.total > MOST_READ) return empty(`Of ${brief(job.total)} items it is told when asked for: GET /v1/jobs/${job.id}/calibration`);
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
    told.without_score ? tile("Without a verdict", brief(told.without_score), "of the labelled") : null,
  ]);
}

async function statistics(job) {
  if (job.total > MOST_READ) return empty(`Of ${brief(job.total)} rows they are told when asked for: GET /v1/jobs/${job.id}/statistics`);
  const { workers, total } = await ask(`/v1/jobs/${job.id}/statistics`).catch(() => ({ workers: [], total: null }));
  if (!total) return empty("There are no statistics of this job.");
  const rows = [...workers, { worker: "all", ...total }];
  return table(
    "What the models did",
    [
      ["Worker", (row) => h("b", {}, row.worker)],
      ["Rows", (row) => brief(row.contexts), true],
      ["Right", (row) => percent(row.success_rate), true],
      ["A row", (row) => span(row.average_inference_time), true],
      ["Tokens in", (row) => brief(row.prompt_tokens), true],
      ["Tokens out", (row) => brief(row.completion_tokens), true],
      ["Tokens a second", (row) => figure(row.tokens_per_s), true],
    ],
    rows,
    (row) => row.worker,
  );
}

/** Of policy scoring, of which the first items are shown; null for scores by other means. */
async function episodes(job) {
  if (!job.ok) return null;
  const { items } = await ask(`/v1/jobs/${job.id}/items?limit=12`);
  const found = items.flatMap((row) => (row.value?.episodes ?? []).map((episode, trial) => ({ row, trial, ...episode })));
  if (!found.length) return null;
  const successes = found.filter((episode) => episode.success).length;
  return [
    h("p", { class: "dim" }, `${successes} of ${plural(found.length, "episode")} succeeded${items.length < job.ok ? ", of the first items" : ""}.`),
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
            episode.video ? h("img", { src: `/v1/jobs/${job.id}/files/${episode.video}`, alt: `Film of an episode: ${episode.instruction}`, loading: "lazy" }) : null,
            h("figcaption", {}, h("b", {}, episode.row.id ?? `#${episode.row.index}`), ` ${episode.success ? "succeeded" : "did not succeed"} in ${plural(episode.steps, "step")}`),
          ),
        ),
      ),
    ),
  ];
}
