// Utilisation of workers over the last minute, computed from snapshots.

const WINDOW_S = 60;

export class Busy {
  constructor() {
    this.points = new Map();
  }

  /** Add a snapshot. Workers report their busy seconds; for a worker that does not, count the snapshots in which it was busy. */
  look(at, rows, nameOf) {
    for (const row of rows) {
      const name = nameOf(row);
      const points = this.points.get(name) ?? [];
      if (points.length && points.at(-1).at >= at) continue;
      if (points.length && row.busy_s !== undefined && row.busy_s < points.at(-1).busy) points.length = 0; // the worker was restarted
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
