// Curves of several jobs over each other, each as its own page draws it: few enough points, from the server.
import { axis, css, digits, gaps, moveCursor, places, whole, words, xAxis, yAxis } from "./axes.js";

const charts = document.querySelector("#compared");
const runs = charts?.dataset.runs.split(",") ?? [];
const colour = (at) => (at === 0 ? css("--text") : css(`--run-${at + 1}`));

class View {
  constructor(element) {
    this.element = element;
    this.plot = element.querySelector(".plot");
    this.value = element.querySelector("[data-value]");
    this.note = element.querySelector("[data-note]");
    this.asked = 0;
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  // Loads the curves of these jobs; those of the others stay.
  async load(changed = runs) {
    const { metric, smooth } = this.element.dataset;
    const pixels = Math.max(50, Math.round(this.plot.clientWidth - 60));
    const mine = ++this.asked, kind = axis.value;
    const before = this.kind === kind ? this.answers : undefined;
    const answers = await Promise.all(runs.map(async (run, at) => {
      if (before?.[at] && !changed.includes(run)) return before[at];
      const url = `/jobs/${encodeURIComponent(run)}/curve?metric=${metric}&pixels=${pixels}&weight=${smooth}${kind === "step" ? "" : `&x=${kind}`}`;
      const answer = await fetch(url).catch(() => null);
      return answer?.ok ? answer.json() : null;
    }));
    if (mine !== this.asked) return;
    Object.assign(this, { answers, kind });
    const name = Number(smooth) ? "smooth" : "last";
    this.empty = answers.flatMap((curve, at) => (curve && places(curve).length ? [] : [at + 1]));
    this.lost = answers.some((curve) => curve === null);
    const known = answers.map((curve) => (curve && places(curve).length ? [places(curve), curve[name]] : [[], []]));
    this.every = answers.map((curve) => curve?.every ?? 1);
    this.data = uPlot.join(known, known.map(() => [2]));
    this.draw();
  }

  draw() {
    this.chart?.destroy();
    this.chart = undefined;
    this.describe();
    if (!this.data[0].length) return;
    this.chart = new uPlot({
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      legend: { show: false },
      cursor: { sync: { key: "compare", setSeries: false }, drag: { x: true, y: false } },
      padding: [null, 16, null, null],
      scales: { x: { time: false } },
      axes: [xAxis(this.kind), yAxis(false)],
      series: [{}, ...runs.map((run, at) => ({ stroke: colour(at), width: at ? 1.6 : 2.5, dash: at > 3 ? [6, 4] : undefined, gaps: (chart, series, first, last, known) => gaps(chart, this.answers[at] ?? {}, known), points: { show: this.data[0].length < 40 } }))],
      hooks: { draw: [(chart) => this.number(chart)], setCursor: [(chart) => this.describe(chart.cursor.idx)] },
    }, this.data, this.plot);
  }

  describe(at) {
    const all = this.data[0];
    this.value.textContent = at === null || at === undefined || !all.length ? "" : `${words(this.kind, all[at])}: ${this.data.slice(1).map((values, run) => `${run + 1} ${digits(this.near(values, at)) || "none"}`).join(", ")}`;
    const notes = [];
    const widest = Math.max(1, ...this.every);
    notes.push(widest > 1 ? `up to ${whole(widest)} steps to a point` : "every point");
    if (Number(this.element.dataset.smooth)) notes.push(`smoothed ${this.element.dataset.smooth}`);
    if (this.lost) notes.push("some could not be loaded");
    else if (this.empty.length) notes.push(`nothing recorded of ${this.empty.join(", ")}`);
    this.note.textContent = notes.join("; ");
  }

  // The number of each run at its line's end; where two would lie over each other, the second is below the first.
  number(chart) {
    const { ctx } = chart, high = 12 * devicePixelRatio;
    ctx.save();
    ctx.font = `600 ${11 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    const ends = this.data.slice(1).flatMap((values, run) => {
      const at = values.findLastIndex((value) => value !== null && value !== undefined);
      return at < 0 ? [] : [{ run, x: chart.valToPos(this.data[0][at], "x", true), y: chart.valToPos(values[at], "y", true) }];
    }).sort((one, other) => one.y - other.y);
    ends.forEach((end, at) => {
      const above = ends.slice(0, at).filter((other) => Math.abs(other.x - end.x) < high).at(-1);
      if (above) end.y = Math.max(end.y, above.y + high);
      ctx.fillStyle = colour(end.run);
      ctx.fillText(String(end.run + 1), end.x + 4 * devicePixelRatio, end.y);
    });
    ctx.restore();
  }

  // Runs have points at steps of their own: the last one up to the cursor counts.
  near(values, at) {
    for (let index = at; index >= 0; index--) if (values[index] !== null && values[index] !== undefined) return values[index];
    return null;
  }

  key(event) {
    if (this.chart) moveCursor(this.chart, event);
  }
}

if (charts && window.uPlot) {
  const views = [...charts.querySelectorAll("[data-metric]")].map((element) => new View(element));
  (async () => { for (const view of views) await view.load(); })();
  const redraw = () => views.forEach((view) => view.data && view.draw());
  document.addEventListener("theme", redraw);
  axis.addEventListener("change", () => views.forEach((view) => view.load()));
  // Links of the page choose jobs: the axis stays.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='/compare?']");
    if (link && axis.value !== "step") link.search = `${link.search.replace(/&x=\w+/, "")}&x=${axis.value}`;
  });
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
