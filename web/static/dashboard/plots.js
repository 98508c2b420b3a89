// Charts in the colours of the page. `Chart` is Chart.js, loaded before the modules run.

const charts = new Set();
const dark = window.matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Convert series with tones, [{label, tone, data, ...}], to colours. `dots`: the tone of each point, if points are drawn. */
function coloured(series) {
  return series.map(({ tone, fill, dots, ...rest }) => ({
    pointRadius: ({ dataset }) => (dataset.data.length === 1 ? 3 : 0), // a line of a single point would be invisible; a function, since Chart.js would keep a number for later points
    ...rest,
    borderColor: colour(tone),
    backgroundColor: fill === false ? "transparent" : colour(`${tone}-soft`),
    fill: fill ?? true,
    ...(dots ? { pointRadius: dots.map((each) => (each === "bad" ? 4 : 2.5)), pointBorderWidth: 0, pointBackgroundColor: dots.map(colour) } : {}),
  }));
}

function options({ x, y, right, stacked, legend, titles, smooth, ...rest }) {
  const axis = ({ ticks, ...given }) => ({ grid: { color: colour("line"), drawTicks: false }, border: { display: false }, ticks: { color: colour("dim"), maxTicksLimit: 6, maxRotation: 0, padding: 6, font: { size: 11 }, ...ticks }, stacked, ...given });
  return {
    animation: false,
    maintainAspectRatio: false,
    responsive: true,
    interaction: { mode: "index", intersect: false },
    elements: { point: { radius: 0, hitRadius: 8 }, line: { borderWidth: 1.5, tension: smooth ?? 0.2 } },
    plugins: { legend: { display: legend ?? false, labels: { color: colour("dim"), boxWidth: 10, boxHeight: 2, font: { size: 11 } } }, tooltip: { displayColors: false, callbacks: titles ? { title: ([item]) => titles[item.dataIndex] } : {} } },
    scales: {
      x: axis({ ...x, grid: { display: false } }),
      y: axis({ beginAtZero: true, ...y }),
      ...(right ? { right: axis({ beginAtZero: true, position: "right", grid: { display: false }, ticks: { precision: 0 } }) } : {}),
    },
    ...rest,
  };
}

export class Plot {
  constructor(canvas, type, settings = {}) {
    Object.assign(this, { canvas, type, settings, series: [], labels: [], chart: null });
    charts.add(this);
  }

  draw(labels, series, settings = this.settings) {
    Object.assign(this, { labels, series, settings });
    if (!window.Chart) return; // the same figures are on the page as text
    if (!this.chart) {
      window.Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
      this.chart = new window.Chart(this.canvas, { type: this.type, data: { labels, datasets: coloured(series) }, options: options(settings) });
      return;
    }
    this.chart.data.labels = labels;
    coloured(series).forEach((fresh, at) => Object.assign((this.chart.data.datasets[at] ??= {}), fresh));
    this.chart.data.datasets.length = series.length;
    this.chart.options = options(settings);
    this.chart.update("none");
  }

  end() {
    charts.delete(this);
    this.chart?.destroy();
  }
}

dark.addEventListener("change", () => charts.forEach((plot) => plot.chart && plot.draw(plot.labels, plot.series)));
