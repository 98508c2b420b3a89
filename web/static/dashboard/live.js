// A stream of server-sent events that comes back by itself, and says so when it is away.

import { byId } from "./dom.js";

/** Milliseconds between two tries where the browser itself does not try again, and without a word until it counts as lost. */
const AGAIN_MS = 4000;
const SILENCE_MS = 12000;

let lostAt = null;

/** The dot in the header, and the line below it: live, connecting, resting, polling or away. */
export function connection(state, sentence = "") {
  const word = { live: "live", away: "disconnected", connecting: "connecting", polling: "every few seconds", resting: "at rest" }[state];
  byId("connection").dataset.state = state;
  if (byId("connection-word").textContent !== word) byId("connection-word").textContent = word;
  const banner = byId("banner");
  if (state === "away") {
    lostAt ??= new Date().toLocaleTimeString();
    const text = `${sentence} What you see is from ${lostAt}; trying again.`;
    if (banner.textContent !== text) banner.textContent = text;
    banner.dataset.state = state;
    banner.hidden = false;
  } else if (state !== "connecting" && lostAt) {
    lostAt = null;
    banner.textContent = "Connected again.";
    banner.dataset.state = "live";
    setTimeout(() => lostAt || (banner.hidden = true), 4000);
  }
}

/** `on` has a function for each event, `poll` asks once by other means, and `talks` says that a silent stream is a dead one. */
export class Stream {
  constructor(url, { on, poll, talks = false }) {
    Object.assign(this, { url, on, poll, talks, source: null, timer: null, heardAt: 0 });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    window.addEventListener("online", () => this.open());
    if (talks) setInterval(() => this.source && Date.now() - this.heardAt > SILENCE_MS && this.lost(), 2000);
    this.open();
  }

  /** A page that nobody sees holds no stream: a browser has six for a host, and the server a thread for each. */
  open() {
    this.close();
    if (document.hidden) return;
    const source = (this.source = new EventSource(this.url));
    this.heardAt = Date.now();
    source.onopen = () => this.talks || connection("live");
    for (const [name, tell] of Object.entries(this.on)) {
      source.addEventListener(name, (event) => {
        this.heardAt = Date.now();
        tell(JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      if (source !== this.source) return;
      if (source.readyState === EventSource.CLOSED) this.lost();
      else this.ended();
    };
  }

  /** Something asked beside the stream was answered: where that had failed, and the stream lived on, all is well again. */
  answered() {
    if (this.source?.readyState === EventSource.OPEN) connection("live");
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** The browser tries again by itself; whether that is the end of a stream or of a server, asking shows. */
  async ended() {
    try {
      await this.poll();
    } catch (problem) {
      connection("away", problem.message);
    }
  }

  /** The browser has given up: no stream was to be had. */
  async lost() {
    this.close();
    try {
      if ((await this.poll()) === "over") return connection("resting");
      connection("polling");
    } catch (problem) {
      connection("away", problem.message);
    }
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }
}

/** Without a stream: ask now, and again after so many milliseconds while the page is seen. */
export function repeat(look, pauseMs) {
  let timer = null;
  const run = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      await look();
      connection("live");
    } catch (problem) {
      connection("away", problem.message);
    }
    timer = setTimeout(run, pauseMs);
  };
  document.addEventListener("visibilitychange", run);
  run();
  return run;
}

