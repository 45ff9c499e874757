// Curves of a job: few enough points from the server, new steps from the stream, drawn by uPlot.
const charts = document.querySelector("#charts");
const jobId = charts?.dataset.job;
const marks = JSON.parse(charts?.dataset.marks ?? "[]");
const limits = JSON.parse(charts?.dataset.limits ?? "{}");
const GIB = 2 ** 30;
const SYNC = "job";
const state = { first: 0, last: null, attempt: 0 };
const views = [];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const scaleOf = (metric) => (metric === "memory_bytes" ? GIB : 1);
function digits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (Math.abs(value) >= 0.001) return Number(value.toPrecision(4)).toString();
  return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
}
// A value that is read, with four digits as elsewhere on the page; on an axis fewer may do.
function exact(value) {
  const short = digits(value);
  return short && Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? value.toPrecision(4) : short;
}
const steps = (value) => value.toLocaleString("en");

class View {
  constructor(element) {
    this.element = element;
    this.metric = element.dataset.metric;
    this.weight = Number(element.dataset.smooth);
    this.plot = element.querySelector(".plot");
    this.note = element.querySelector("[data-note]");
    this.value = element.querySelector("[data-value]");
    this.asked = 0;
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  get isLog() {
    return this.element.dataset.scale === "log" || (this.metric.endsWith("loss") && document.querySelector("#log-loss").checked);
  }

  get smoothing() {
    return this.weight && document.querySelector("#smooth-on").checked ? Number(document.querySelector("#smooth-weight").value) || 0 : 0;
  }

  async load() {
    const mine = ++this.asked;
    const url = new URL(`/jobs/${encodeURIComponent(jobId)}/curve`, location.href);
    const values = { metric: this.metric, pixels: Math.max(50, Math.round(this.plot.clientWidth - 60)), weight: this.smoothing };
    if (state.last !== null) Object.assign(values, { first: state.first, last: state.last });
    for (const [name, value] of Object.entries(values)) url.searchParams.set(name, value);
    const answer = await fetch(url).catch(() => null);
    if (mine !== this.asked) return;
    if (!answer?.ok) {
      this.note.textContent = "This curve could not be loaded; the rest of the page goes on.";
      return;
    }
    this.curve = await answer.json();
    this.draw();
  }

  // A step that the stream brings goes into its bucket, as the server would put it.
  add(step, raw) {
    const curve = this.curve;
    if (!curve || raw === null || raw === undefined || state.last !== null || step <= (curve.steps.at(-1) ?? 0)) return;
    const weight = this.smoothing;
    curve.total = weight * curve.total + (1 - weight) * raw;
    curve.count += 1;
    curve.num_points += 1;
    const smooth = weight ? curve.total / (1 - weight ** curve.count) : raw;
    const at = curve.steps.length - 1;
    if (at > 0 && Math.floor(curve.steps[at] / curve.every) === Math.floor(step / curve.every)) {
      curve.steps[at] = step;
      curve.last[at] = raw;
      curve.low[at] = Math.min(curve.low[at] ?? raw, raw);
      curve.high[at] = Math.max(curve.high[at] ?? raw, raw);
      curve.smooth[at] = smooth;
    } else {
      curve.steps.push(step);
      for (const [name, value] of [["last", raw], ["low", raw], ["high", raw], ["smooth", smooth]]) curve[name].push(value);
    }
  }

  get data() {
    const by = scaleOf(this.metric), curve = this.curve;
    const positive = (value) => (value === null || (this.isLog && value <= 0) ? null : value / by);
    return [curve.steps, ...["high", "low", this.smoothing ? "smooth" : "last"].map((name) => curve[name].map(positive))];
  }

  draw() {
    const curve = this.curve;
    this.describe();
    if (!curve.steps.length) {
      this.chart?.destroy();
      this.chart = undefined;
      return;
    }
    if (this.chart && this.chart.isLog === this.isLog) {
      this.chart.setData(this.data);
      return;
    }
    this.chart?.destroy();
    this.chart = new uPlot(this.options(), this.data, this.plot);
    this.chart.isLog = this.isLog;
  }

  describe() {
    const curve = this.curve, unit = this.element.dataset.unit;
    const newest = curve.last.at(-1);
    this.value.textContent = curve.steps.length ? `${exact((newest ?? NaN) / scaleOf(this.metric)) || "not a number"} at step ${steps(curve.steps.at(-1))}` : "";
    const words = [curve.every > 1 ? `${steps(curve.num_points)} steps, ${curve.every} to a point with their least and greatest` : "every point"];
    if (!curve.steps.length) words.splice(0, 1, this.metric === "valid_loss" ? "nothing measured on a validation file yet" : "nothing recorded yet");
    if (this.smoothing) words.push(`smoothed ${this.smoothing}`);
    if (curve.not_numbers.length) words.push(`${curve.not_numbers.length} steps are not a number, from step ${steps(curve.not_numbers[0])}`);
    if (this.isLog) {
      const hidden = curve.last.filter((value) => value !== null && value <= 0).length;
      words.push(hidden ? `log scale, ${hidden} values of 0 and less not shown` : "log scale");
    }
    this.note.textContent = words.join("; ");
    this.plot.setAttribute("aria-label", `${this.element.querySelector("h2 span").textContent}: ${this.value.textContent || "no values"}`);
    this.plot.title = unit;
  }

  options() {
    const line = css("--run"), text = css("--muted"), grid = css("--line");
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
    const isSparse = this.curve.steps.length < 40;
    return {
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false }, points: { size: 6 } },
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: this.isLog ? 3 : 1, range: this.isLog ? undefined : (chart, low, high) => uPlot.rangeNum(low, high, 0.08, false) } },
      axes: [{ ...axis, size: 32, values: (chart, all) => all.map((value) => (Number.isInteger(value) ? steps(value) : "")) }, { ...axis, size: 60, values: (chart, all) => all.map((value) => (value === null ? "" : digits(value))) }],
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: line, width: 1.8, points: { show: isSparse, size: 5, fill: line } },
      ],
      bands: [{ series: [1, 2], fill: `${line}40` }],
      hooks: {
        draw: [(chart) => this.mark(chart)],
        setCursor: [(chart) => this.read(chart)],
        setSelect: [(chart) => {
          if (chart.select.width < 5) return;
          const first = Math.floor(chart.posToVal(chart.select.left, "x")), last = Math.ceil(chart.posToVal(chart.select.left + chart.select.width, "x"));
          chart.setSelect({ width: 0, height: 0 }, false);
          zoom(Math.max(0, first), last);
        }],
      },
    };
  }

  read(chart) {
    const at = chart.cursor.idx;
    if (at === null || at === undefined) return this.describe();
    this.value.textContent = `${exact(chart.data[3][at]) || "none"} at step ${steps(chart.data[0][at])}`;
  }

  mark(chart) {
    const { ctx } = chart, { left, top, width, height } = chart.bbox;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.strokeStyle = css("--muted");
    for (const { step, kind } of marks) {
      const x = Math.round(chart.valToPos(step, "x", true));
      if (x < left || x > left + width) continue;
      ctx.setLineDash(kind === "stopped" ? [4 * devicePixelRatio, 4 * devicePixelRatio] : []);
      ctx.beginPath();
      ctx.moveTo(x + (kind === "resumed" ? 2 * devicePixelRatio : 0), top);
      ctx.lineTo(x + (kind === "resumed" ? 2 * devicePixelRatio : 0), top + height);
      ctx.stroke();
    }
    const limit = limits[this.metric];
    if (limit) {
      const y = chart.valToPos(limit / scaleOf(this.metric), "y", true);
      ctx.strokeStyle = css("--bad");
      ctx.setLineDash([4, 4]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      if (y >= top) ctx.stroke();
    }
    ctx.restore();
  }

  key(event) {
    if (!this.chart) return;
    const chart = this.chart, all = chart.data[0], at = chart.cursor.idx ?? all.length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) {
      const step = all[Math.min(Math.max(to, 0), all.length - 1)];
      chart.setCursor({ left: chart.valToPos(step, "x"), top: 10 });
      event.preventDefault();
    } else if (event.key === "+" || event.key === "-") {
      const [low, high] = [all[0], all.at(-1)], middle = all[at] ?? high, half = ((high - low) * (event.key === "+" ? 0.5 : 2)) / 2;
      zoom(Math.max(0, Math.floor(middle - half)), Math.ceil(middle + half));
      event.preventDefault();
    }
  }
}

let waiting;
function zoom(first, last) {
  Object.assign(state, { first, last });
  clearTimeout(waiting);
  waiting = setTimeout(() => views.forEach((view) => view.load()), 150);
}
const whole = () => { Object.assign(state, { first: 0, last: null }); views.forEach((view) => view.load()); };
const redraw = () => views.forEach((view) => { if (view.curve) { view.chart?.destroy(); view.chart = undefined; view.draw(); } });

if (charts && window.uPlot) {
  for (const element of charts.querySelectorAll("[data-metric]")) views.push(new View(element));
  (async () => { for (const view of views) await view.load(); })();
  charts.addEventListener("dblclick", whole);
  document.querySelector("#reset-zoom").addEventListener("click", whole);
  document.querySelector("#smooth-on").addEventListener("change", () => views.forEach((view) => view.load()));
  document.querySelector("#smooth-weight").addEventListener("change", () => views.forEach((view) => view.load()));
  document.querySelector("#log-loss").addEventListener("change", redraw);
  document.addEventListener("theme", redraw);
  let size;
  addEventListener("resize", () => { clearTimeout(size); size = setTimeout(() => { redraw(); views.forEach((view) => view.load()); }, 200); });
  document.addEventListener("stream:redraw", () => views.forEach((view) => view.load()));
  document.addEventListener("stream:steps", ({ detail }) => {
    document.querySelector("#no-steps")?.remove();
    const hidden = document.querySelector("#curves[hidden]");
    if (hidden) {
      hidden.hidden = false;
      return views.forEach((view) => view.load());
    }
    // An attempt that resumed made steps again: what is drawn of them is the newest attempt's.
    const attempt = detail.at(-1).attempt, isNew = state.attempt && attempt !== state.attempt;
    state.attempt = attempt;
    if (isNew) return views.forEach((view) => view.load());
    for (const view of views) {
      for (const point of detail) view.add(point.step, point[view.metric]);
      if (view.curve) view.draw();
    }
  });
  // A step is measured on the validation file after it was done, and drawn.
  document.addEventListener("stream:validated", ({ detail }) => {
    const view = views.find((each) => each.metric === "valid_loss");
    if (view?.curve && (view.curve.steps.at(-1) ?? 0) < detail) view.load();
  });
  document.addEventListener("keydown", (event) => {
    if (!document.querySelector("#single-keys")?.checked || event.target.closest("input,select,textarea,dialog") || event.ctrlKey || event.metaKey) return;
    if (event.key === "r") whole();
    if (event.key === "s") document.querySelector("#smooth-on").click();
    if (event.key === "l") document.querySelector("#log-loss").click();
  });
}
