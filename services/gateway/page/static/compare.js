// Curves of several jobs over each other, each as its own page draws it: few enough points, from the server.
const charts = document.querySelector("#compared");
const runs = charts?.dataset.runs.split(",") ?? [];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const steps = (value) => value.toLocaleString("en");
const digits = (value) => (value === null || value === undefined ? "none" : Math.abs(value) >= 1000 ? steps(Math.round(value)) : Math.abs(value) < 0.001 && value ? value.toPrecision(3) : value.toPrecision(4));
const short = (value) => (value === null ? "" : value === 0 ? "0" : Math.abs(value) >= 0.001 ? Number(value.toPrecision(4)).toLocaleString("en") : Number(value.toPrecision(3)).toExponential().replace("e+", "e"));
const colour = (at) => (at === 0 ? css("--text") : css(`--run-${at + 1}`));

class View {
  constructor(element) {
    this.element = element;
    this.plot = element.querySelector(".plot");
    this.value = element.querySelector("[data-value]");
    this.note = element.querySelector("[data-note]");
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  // Loads the curves of these jobs; those of the others stay.
  async load(changed = runs) {
    const { metric, smooth } = this.element.dataset;
    const pixels = Math.max(50, Math.round(this.plot.clientWidth - 60));
    const before = this.answers;
    const answers = this.answers = await Promise.all(runs.map(async (run, at) => {
      if (before?.[at] && !changed.includes(run)) return before[at];
      const url = `/jobs/${encodeURIComponent(run)}/curve?metric=${metric}&pixels=${pixels}&weight=${smooth}`;
      const answer = await fetch(url).catch(() => null);
      return answer?.ok ? answer.json() : null;
    }));
    const name = Number(smooth) ? "smooth" : "last";
    this.empty = answers.flatMap((curve, at) => (curve?.steps.length ? [] : [at + 1]));
    this.lost = answers.some((curve) => curve === null);
    const known = answers.map((curve) => (curve?.steps.length ? [curve.steps, curve[name]] : [[], []]));
    this.every = answers.map((curve) => curve?.every ?? 1);
    this.data = uPlot.join(known, known.map(() => [2]));
    this.draw();
  }

  draw() {
    this.chart?.destroy();
    this.chart = undefined;
    this.describe();
    if (!this.data[0].length) return;
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "12px system-ui" };
    this.chart = new uPlot({
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      legend: { show: false },
      cursor: { sync: { key: "compare", setSeries: false }, drag: { x: true, y: false } },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 32, values: (chart, all) => all.map((value) => (Number.isInteger(value) ? steps(value) : "")) }, { ...axis, size: 60, values: (chart, all) => all.map(short) }],
      series: [{}, ...runs.map((run, at) => ({ stroke: colour(at), width: at ? 1.6 : 2.5, dash: at > 3 ? [6, 4] : undefined, spanGaps: true, points: { show: this.data[0].length < 40 } }))],
      hooks: { setCursor: [(chart) => this.describe(chart.cursor.idx)] },
    }, this.data, this.plot);
  }

  describe(at) {
    const all = this.data[0];
    this.value.textContent = at === null || at === undefined || !all.length ? "" : `step ${steps(all[at])}: ${this.data.slice(1).map((values, run) => `${run + 1} ${digits(this.near(values, at))}`).join(", ")}`;
    const words = [];
    const widest = Math.max(1, ...this.every);
    words.push(widest > 1 ? `up to ${steps(widest)} steps to a point` : "every point");
    if (Number(this.element.dataset.smooth)) words.push(`smoothed ${this.element.dataset.smooth}`);
    if (this.lost) words.push("some could not be loaded");
    else if (this.empty.length) words.push(`nothing recorded of ${this.empty.join(", ")}`);
    this.note.textContent = words.join("; ");
  }

  // Runs have points at steps of their own: the last one up to the cursor counts.
  near(values, at) {
    for (let index = at; index >= 0; index--) if (values[index] !== null && values[index] !== undefined) return values[index];
    return null;
  }

  key(event) {
    if (!this.chart) return;
    const all = this.data[0], at = this.chart.cursor.idx ?? all.length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    this.chart.setCursor({ left: this.chart.valToPos(all[Math.min(Math.max(to, 0), all.length - 1)], "x"), top: 10 });
    event.preventDefault();
  }
}

if (charts && window.uPlot) {
  const views = [...charts.querySelectorAll("[data-metric]")].map((element) => new View(element));
  (async () => { for (const view of views) await view.load(); })();
  const redraw = () => views.forEach((view) => view.data && view.draw());
  document.addEventListener("theme", redraw);
  const changed = new Set();
  let reload;
  document.addEventListener("stream:redraw", ({ detail }) => {
    detail.forEach((run) => changed.add(run));
    reload ??= setTimeout(async () => {
      const all = [...changed];
      changed.clear();
      for (const view of views) await view.load(all);
      reload = undefined;
      if (changed.size) document.dispatchEvent(new CustomEvent("stream:redraw", { detail: [] }));
    }, 2000);
  });
  let size;
  addEventListener("resize", () => { clearTimeout(size); size = setTimeout(redraw, 200); });
}
