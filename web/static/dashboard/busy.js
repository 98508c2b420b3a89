// How busy workers are, from one snapshot to the next, over the last minute.

const WINDOW_S = 60;

export class Busy {
  constructor() {
    this.points = new Map();
  }

  /** Workers tell the seconds in which they worked so far; of those that do not, it is counted how often they were seen at work. */
  look(at, rows, nameOf) {
    for (const row of rows) {
      const name = nameOf(row);
      const points = this.points.get(name) ?? [];
      if (points.length && points.at(-1).at >= at) continue;
      if (points.length && row.busy_s !== undefined && row.busy_s < points.at(-1).busy) points.length = 0; // it started anew
      points.push({ at, busy: row.busy_s, seen: row.busy ?? row.active > 0 });
      while (points[0].at < at - WINDOW_S) points.shift();
      this.points.set(name, points);
    }
  }

  share(name) {
    const points = this.points.get(name) ?? [];
    if (!points.length) return null;
    const [first, last] = [points[0], points.at(-1)];
    if (last.busy !== undefined && first.busy !== undefined) {
      return last.at > first.at ? Math.min(1, (last.busy - first.busy) / (last.at - first.at)) : Number(last.seen);
    }
    return points.filter((point) => point.seen).length / points.length;
  }
}
