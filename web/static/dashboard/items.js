// Items of a job: a table with a search, which runs on the server.

import { ask } from "./api.js";
import { byId, h, show } from "./dom.js";
import { empty, table, word } from "./parts.js";
import { figure, milliseconds, plural } from "./words.js";

const PAGE = 25;
/** Maximum requests per search. Each request scans 20,000 items. */
const MOST_REQUESTS = 25;
const TONES = { ok: null, failed: "bad", timed_out: "warn", cancelled: "warn" };

export class Items {
  constructor(path) {
    Object.assign(this, { path, form: byId("search"), rows: [], next: null, asked: false, search: null });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.refresh();
    });
    this.form.addEventListener("change", () => this.refresh());
    byId("more").addEventListener("click", () => this.more());
  }

  /** Whether the first page has room for further items. */
  get isShort() {
    return this.rows.length < PAGE;
  }

  /** Set the options of the filter by error type. */
  offer(types) {
    const select = this.form.elements.error;
    const chosen = select.value;
    show(select, h("option", { value: "" }, "any"), types.map((type) => h("option", {}, type)));
    select.value = types.includes(chosen) ? chosen : "";
  }

  only(type) {
    this.form.elements.status.value = "";
    this.form.elements.search.value = "";
    this.form.elements.error.value = type;
    this.refresh();
    byId("items-title").scrollIntoView({ block: "start" });
  }

  async refresh() {
    await this.page(0, []);
  }

  async more() {
    await this.page(this.next, this.rows);
  }

  async page(start, before) {
    const query = new URLSearchParams([...new FormData(this.form)].filter(([, value]) => value));
    const isFiltered = query.size > 0;
    const search = (this.search = Symbol());
    query.set("limit", PAGE);
    this.asked = true;
    byId("more").disabled = true;
    try {
      let rows = before;
      // A request scans a limited number of items, so a search continues until it has found a page of them.
      for (let requests = 0; requests < MOST_REQUESTS && start !== null && rows.length < before.length + PAGE; requests++) {
        query.set("start", start);
        const told = await ask(`${this.path}/items?${query}`);
        if (search !== this.search) return; // a newer search has begun
        rows = [...rows, ...told.items];
        start = told.next;
        Object.assign(this, { rows, next: start });
        this.draw(isFiltered, told);
        if (!isFiltered) break;
      }
    } catch (problem) {
      if (search === this.search) show(byId("items"), empty(problem.message));
    } finally {
      if (search === this.search) byId("more").disabled = false;
    }
  }

  draw(isFiltered, { total }) {
    byId("more").hidden = this.next === null;
    byId("found").textContent = isFiltered ? `${plural(this.rows.length, "item")} found${this.next === null ? "" : " so far"}.` : "";
    if (!this.rows.length) {
      const nothing = this.next === null ? "No item matches." : `No match in the first ${this.next.toLocaleString("en")} of ${total.toLocaleString("en")} items.`;
      return show(byId("items"), empty(isFiltered ? nothing : "No item has an outcome yet."));
    }
    show(byId("items"), table("Items", COLUMNS, this.rows, (row) => row.index));
  }
}

const COLUMNS = [
  ["Item", (row) => [clipped("b", row.id ?? `#${row.index}`), row.group_id ? [" ", clipped("span", row.group_id)] : ""]],
  ["Status", (row) => [word(row.status.replace("_", " "), TONES[row.status]), row.cached ? [" ", word("cached")] : ""]],
  ["Score", (row) => (row.score === null ? "–" : figure(row.score)), true],
  ["Result", (row) => result(row)],
  ["Time", (row) => (row.cached ? "–" : milliseconds(row.latency_ms)), true],
  ["Attempts", (row) => row.attempts, true],
  ["Worker", (row) => row.worker || "–"],
];

/** A name given by the client. A long name is clipped; its tooltip and the result of the row have it in full. */
const clipped = (tag, text) => h(tag, { class: tag === "b" ? "clip" : "clip dim", title: String(text).length > 30 ? text : null }, text);

function result(row) {
  const { value, parts, error } = row;
  const whole = { ...(error && { error }), ...(parts && { parts }), ...(isNothing(value) ? {} : { value }) };
  if (!Object.keys(whole).length) return "–";
  const line = error ? `${error.type}: ${error.message}` : brief(row) || JSON.stringify(value);
  return h("details", {}, h("summary", {}, line.length > 70 ? `${line.slice(0, 70)}…` : line), h("pre", {}, JSON.stringify(whole, null, 2)));
}

const isNothing = (value) => value === null || value === "" || (typeof value === "object" && !Object.keys(value).length);

/** The most informative part of a value, as a line of text. */
function brief({ value, parts }) {
  const answer = value?.answers?.[0] ?? value?.answer ?? value?.verdicts?.[0]?.rationale;
  if (typeof answer === "string") return answer;
  if (typeof value === "string") return value;
  return parts ? Object.entries(parts).map(([name, part]) => `${name} ${figure(part)}`).join(", ") : "";
}
