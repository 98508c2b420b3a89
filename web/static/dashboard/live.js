// Stream of server-sent events with automatic reconnection, and the connection state in the header.

import { byId } from "./dom.js";

/** Milliseconds between two reconnections where the browser does not reconnect, and of silence after which a stream is lost. */
const AGAIN_MS = 4000;
const SILENCE_MS = 12000;

let lostAt = null;

/** Show the connection state in the header and in the banner: live, connecting, ended, polling or away. */
export function connection(state, sentence = "") {
  const word = { live: "live", away: "disconnected", connecting: "connecting", polling: "every few seconds", ended: "ended" }[state];
  byId("connection").dataset.state = state;
  if (byId("connection-word").textContent !== word) byId("connection-word").textContent = word;
  const banner = byId("banner");
  if (state === "away") {
    lostAt ??= new Date().toLocaleTimeString();
    const text = `${sentence} This page shows data of ${lostAt}; reconnecting.`;
    if (banner.textContent !== text) banner.textContent = text;
    banner.dataset.state = state;
    banner.hidden = false;
  } else if (state !== "connecting" && lostAt) {
    lostAt = null;
    banner.textContent = "Reconnected.";
    banner.dataset.state = "live";
    setTimeout(() => lostAt || (banner.hidden = true), 4000);
  }
}

/** `on`: a function per event. `poll`: requests the data once, without a stream. `talks`: a silent stream counts as lost. */
export class Stream {
  constructor(url, { on, poll, talks = false }) {
    Object.assign(this, { url, on, poll, talks, source: null, timer: null, heardAt: 0 });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    window.addEventListener("online", () => this.open());
    if (talks) setInterval(() => this.source && Date.now() - this.heardAt > SILENCE_MS && this.lost(), 2000);
    this.open();
  }

  /** Open the stream. A hidden page holds none: a browser allows six per host, and each takes a thread of the server. */
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

  /** A request beside the stream succeeded: if an earlier request had failed while the stream stayed open, show `live` again. */
  answered() {
    if (this.source?.readyState === EventSource.OPEN) connection("live");
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** The stream was cut, and the browser reconnects by itself. Poll, to find out whether the server is away. */
  async ended() {
    try {
      await this.poll();
    } catch (problem) {
      connection("away", problem.message);
    }
  }

  /** The browser does not reconnect: poll now, and open the stream again later. */
  async lost() {
    this.close();
    try {
      if ((await this.poll()) === "over") return connection("ended");
      connection("polling");
    } catch (problem) {
      connection("away", problem.message);
    }
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }
}

/** Poll without a stream: now, and then every `pauseMs` while the page is visible. */
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

