// Formatting of numbers, durations, dates, sizes and costs.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => (number === null || number === undefined ? "–" : plain.format(number));

/** Format a count: 1,234 in full, 123,456 as 123.5K. */
export const brief = (number) => (number === null || number === undefined ? "–" : Math.abs(number) < 10000 ? plain.format(number) : short.format(number));

export function figure(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 10000) return short.format(number);
  return String(Number(number.toPrecision(size >= 1000 ? 4 : 3)));
}

export const rate = (perSecond) => (perSecond === null || perSecond === undefined ? "–" : `${figure(perSecond)}/s`);

/** Format a share. 0 % and 100 % are exact: a share near them is shown as <1 % or >99 %. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.005) return "<1 %";
  return share >= 0.995 && share < 1 ? ">99 %" : `${Math.round(100 * share)} %`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return `${Number((1000 * seconds).toPrecision(2))} ms`;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return parts(Math.round(seconds), "min", "s");
  if (seconds < 172800) return parts(Math.round(seconds / 60), "h", "min");
  return `${Math.round(seconds / 86400)} days`;
}

const parts = (number, large, small) => `${Math.floor(number / 60)} ${large} ${number % 60} ${small}`;

export const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : span(ms / 1000));

/** Format an age in whole units of a single size, because an age is read at a glance. */
export function ago(at, now) {
  const seconds = now - at;
  if (seconds < 1) return "just now";
  const [unit, name] = [[86400, "days"], [3600, "h"], [60, "min"]].find(([each]) => seconds >= 2 * each) ?? [1, "s"];
  return `${Math.floor(seconds / unit)} ${name} ago`;
}

export const clock = (at) => new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const day = (at) => new Date(1000 * at).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

export const date = (at) => new Date(1000 * at).toLocaleDateString([], { month: "short", day: "numeric" });

/** Format a size in units of 2^20 bytes, as the API counts: a GPU of 80 GB has 81,920. */
export function megabytes(mb) {
  if (mb === null || mb === undefined) return "–";
  return mb >= 1000 ? `${gigabytes(mb)} GB` : `${Math.round(mb)} MB`;
}

export const gigabytes = (mb) => String(Number((mb / 1024).toFixed(1)));

/** Format a cost: {"USD": 1.5} as "1.50 USD". Null if it is zero. */
export function money(cost) {
  const parts = Object.entries(cost ?? {}).filter(([, amount]) => amount > 0);
  return parts.length ? parts.map(([currency, amount]) => `${amount < 0.01 ? amount.toPrecision(2) : amount.toFixed(2)} ${currency}`).join(", ") : null;
}

export const plural = (number, word, several = `${word}s`) => `${count(number)} ${number === 1 ? word : several}`;
