// Page of the job list: newest first, with filters and older pages on request.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { connection, repeat } from "./live.js";
import { empty, jobList } from "./parts.js";

const PAGE = 50;
const AGAIN_MS = 5000;
const form = byId("filter");
let older = []; // jobs of the pages after the first
let next = null;

const asked = () => new URLSearchParams([...new FormData(form)].filter(([, value]) => value));

async function page(cursor) {
  const query = asked();
  query.set("limit", PAGE);
  if (cursor) query.set("cursor", cursor);
  return ask(`/v1/jobs?${query}`);
}

async function look() {
  const first = await page(null);
  if (!older.length) next = first.next;
  const known = new Set(first.jobs.map((job) => job.id));
  draw([...first.jobs, ...older.filter((job) => !known.has(job.id))]);
}

function draw(jobs) {
  show(byId("jobs"), jobs.length ? jobList(jobs, Date.now() / 1000) : nothing());
  byId("more").hidden = !next;
}

function nothing() {
  if (next) return empty("No match in the newest 2,000 jobs; older jobs may match.");
  return asked().size ? empty("No job matches.") : empty("No job has been submitted yet. ", h("a", { href: "/submit" }, "Submit an example"), ".");
}

const given = new URLSearchParams(location.search);
for (const field of form.elements) if (given.get(field.name)) field.value = given.get(field.name);
const refresh = repeat(look, AGAIN_MS);

form.addEventListener("change", () => {
  [older, next] = [[], null];
  history.replaceState(null, "", `/jobs?${asked()}`);
  refresh();
});
byId("more").addEventListener("click", async () => {
  byId("more").disabled = true;
  try {
    const told = await page(next);
    older.push(...told.jobs);
    next = told.next;
    await look();
  } catch (problem) {
    connection("away", problem.message);
  } finally {
    byId("more").disabled = false;
  }
});
