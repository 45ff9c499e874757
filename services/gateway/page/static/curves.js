// Curves of a job: few enough points from the server, new steps from the stream, drawn by uPlot.
import { axis, chosen, css, digits, gaps, keep, moveCursor, places, plural, whole, words, xAxis, yAxis } from "./axes.js";

const charts = document.querySelector("#charts");
const jobId = charts?.dataset.job;
const written = () => document.querySelector("[data-marks]")?.dataset.marks ?? "[]";
let marks = JSON.parse(written()), marksAsWritten = written();
const limits = JSON.parse(charts?.dataset.limits ?? "{}");
const GIB = 2 ** 30;
const SYNC = "job";
const NEAR = 6, MOST_WORDS = 3;
const TRIANGLE = { half: 4.5, high: 8 };
const state = { first: 0, last: null, attempt: 0 };
const views = [];
const smooth = { on: document.querySelector("#smooth-on"), weight: document.querySelector("#smooth-weight") };
const logLoss = document.querySelector("#log-loss");

const scaleOf = (metric) => (metric === "memory_bytes" ? GIB : 1);

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
    return this.element.dataset.scale === "log" || (this.metric.endsWith("loss") && logLoss.checked);
  }

  get smoothing() {
    return this.weight && smooth.on.checked ? Number(smooth.weight.value) || 0 : 0;
  }

  async load() {
    const mine = ++this.asked, kind = axis.value;
    const url = new URL(`/jobs/${encodeURIComponent(jobId)}/curve`, location.href);
    const values = { metric: this.metric, pixels: Math.max(50, Math.round(this.plot.clientWidth - 60)), weight: this.smoothing };
    if (kind !== "step") values.x = kind;
    if (state.last !== null) Object.assign(values, { first: state.first, last: state.last });
    for (const [name, value] of Object.entries(values)) url.searchParams.set(name, value);
    const answer = await fetch(url).catch(() => null);
    if (mine !== this.asked) return;
    if (!answer?.ok) {
      this.note.textContent = "This curve could not be loaded; the rest of the page goes on.";
      return;
    }
    const curve = await answer.json();
    if (mine !== this.asked) return;
    Object.assign(this, { curve, kind, numNew: 0 });
    this.draw();
  }

  // A step that the stream brings goes into its bucket, as the server would put it.
  add(point) {
    const curve = this.curve, { step } = point, raw = point[this.metric];
    if (!curve || raw === null || raw === undefined || step <= (curve.steps.at(-1) ?? 0)) return;
    if (state.last !== null) {
      if (step > state.last) this.numNew += 1;
      return;
    }
    const place = this.place(point);
    if (place === null) return this.load();
    const weight = this.smoothing;
    curve.total = weight * curve.total + (1 - weight) * raw;
    curve.count += 1;
    curve.num_points += 1;
    const shown = weight ? curve.total / (1 - weight ** curve.count) : raw;
    const at = curve.steps.length - 1;
    if (at > 0 && Math.floor(curve.steps[at] / curve.every) === Math.floor(step / curve.every)) {
      curve.steps[at] = step;
      curve.last[at] = raw;
      curve.low[at] = Math.min(curve.low[at] ?? raw, raw);
      curve.high[at] = Math.max(curve.high[at] ?? raw, raw);
      curve.smooth[at] = shown;
      if (curve.x) curve.x[at] = place;
    } else {
      curve.steps.push(step);
      curve.x?.push(place);
      for (const [name, value] of [["last", raw], ["low", raw], ["high", raw], ["smooth", shown]]) curve[name].push(value);
    }
  }

  // Where a step that the stream brings is on the axis; null where only the server knows.
  place({ step, done_at: doneAt, num_tokens: tokens }) {
    const curve = this.curve, last = curve.x?.at(-1);
    if (this.kind === "step") return step;
    if (last === undefined) return null;
    if (this.kind === "tokens") return step === curve.steps.at(-1) + 1 ? last + tokens : null;
    return Math.max(last, doneAt - curve.began_at);
  }

  get data() {
    const by = scaleOf(this.metric), curve = this.curve;
    const positive = (value) => (value === null || (this.isLog && value <= 0) ? null : value / by);
    return [places(curve), ...["high", "low", this.smoothing ? "smooth" : "last"].map((name) => curve[name].map(positive))];
  }

  draw() {
    const curve = this.curve;
    this.describe();
    if (!places(curve).length) {
      this.chart?.destroy();
      this.chart = undefined;
      return;
    }
    if (this.chart && this.chart.isLog === this.isLog && this.chart.kind === this.kind) {
      this.chart.setData(this.data);
      return;
    }
    this.chart?.destroy();
    this.chart = new uPlot(this.options(), this.data, this.plot);
    Object.assign(this.chart, { isLog: this.isLog, kind: this.kind });
  }

  describe() {
    const curve = this.curve, unit = this.element.dataset.unit;
    const newest = curve.last.at(-1);
    this.value.textContent = curve.steps.length ? this.reading(newest ?? NaN, curve.steps.length - 1, "not a number") : "";
    const notes = [curve.every > 1 ? `${whole(curve.num_points)} steps, ${curve.every} to a point with their least and greatest` : "every point"];
    if (!curve.steps.length) notes.splice(0, 1, this.metric === "valid_loss" ? "nothing measured on a validation file yet" : "nothing recorded yet");
    else if (!places(curve).length) notes.splice(0, 1, "its steps are kept no more: choose steps as the axis");
    if (this.numNew) notes.push(`${plural(this.numNew, "new step")} after these`);
    if (this.smoothing) notes.push(`smoothed ${this.smoothing}`);
    if (curve.not_numbers.length) notes.push(`not a number: ${plural(curve.not_numbers.length, "step")}, from step ${whole(curve.not_numbers[0])}`);
    if (this.isLog) {
      const hidden = curve.last.filter((value) => value !== null && value <= 0).length;
      notes.push(hidden ? `log scale, ${plural(hidden, "value")} of 0 and less not shown` : "log scale");
    }
    this.notes = notes.join("; ");
    this.plot.title = unit;
    this.tell();
  }

  // Words of marks take the place of the notes.
  tell(words = "") {
    this.note.textContent = words || this.notes;
    const title = this.element.querySelector("h2 span").textContent;
    this.plot.setAttribute("aria-label", [`${title}: ${this.value.textContent || "no values"}`, words].filter(Boolean).join("; "));
  }

  // A value, its step, and where that is on the axis.
  reading(value, at, missing) {
    const curve = this.curve, place = places(curve)[at];
    const by = [`${digits(value / scaleOf(this.metric)) || missing} at step ${whole(curve.steps[at])}`];
    if (this.kind !== "step" && place !== undefined) by.push(words(this.kind, place));
    const period = this.kind === "time" && periods().findLast(([, , from]) => from - curve.began_at <= place);
    if (period) by.push(`attempt ${period[0]}`);
    return by.join(", ");
  }

  options() {
    const line = css("--run");
    const isSparse = this.curve.steps.length < 40;
    const hidden = (chart, series, first, last, known) => gaps(chart, this.curve, known);
    return {
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false }, points: { size: 6 } },
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: this.isLog ? 3 : 1, range: this.isLog ? undefined : (chart, low, high) => uPlot.rangeNum(low, high, 0.08, false) } },
      axes: [xAxis(this.kind), yAxis(this.isLog)],
      series: [
        {},
        ...[0, 1].map(() => ({ stroke: "transparent", points: { show: false }, gaps: hidden })),
        { stroke: line, width: 1.8, gaps: hidden, points: { show: isSparse, size: 5, fill: line } },
      ],
      bands: [{ series: [1, 2], fill: `${line}40` }],
      hooks: {
        draw: [(chart) => this.mark(chart)],
        setCursor: [(chart) => this.read(chart)],
        setSelect: [(chart) => {
          if (chart.select.width < 5) return;
          const ends = [chart.select.left, chart.select.left + chart.select.width].map((left) => chart.posToVal(left, "x"));
          chart.setSelect({ width: 0, height: 0 }, false);
          this.zoom(...ends);
        }],
      },
    };
  }

  read(chart) {
    const at = chart.cursor.idx;
    if (at === null || at === undefined) return this.describe();
    this.value.textContent = this.reading(this.curve[this.smoothing ? "smooth" : "last"][at] ?? NaN, at, "none");
    this.tell(this.wordsAt(chart, at));
  }

  // Of the marks where the cursor is; by keys it goes from point to point, and a mark belongs to the nearest one.
  wordsAt(chart, at) {
    const isPointed = this.plot.matches(":hover");
    if (!isPointed && !this.plot.matches(":focus")) return "";
    const near = this.marks.filter((mark) => {
      const place = this.placeOf(mark);
      if (place === null) return false;
      return Math.abs(chart.valToPos(place, "x") - chart.cursor.left) <= NEAR || (!isPointed && chart.valToIdx(place) === at);
    });
    const words = near.slice(0, MOST_WORDS).map(({ text }) => text);
    return near.length > MOST_WORDS ? `${words.join("; ")}; and ${near.length - MOST_WORDS} more` : words.join("; ");
  }

  get marks() {
    return marks.filter(({ metrics }) => !metrics || metrics.includes(this.metric));
  }

  mark(chart) {
    const { ctx } = chart, { left, top, width, height } = chart.bbox;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const mark of this.marks) {
      const { kind } = mark, isAlert = kind === "open" || kind === "cleared";
      ctx.strokeStyle = css(kind === "open" ? "--warn" : "--muted");
      const place = this.placeOf(mark), x = place === null ? -1 : Math.round(chart.valToPos(place, "x", true));
      if (x < left || x > left + width) continue;
      ctx.setLineDash((DASHES[kind] ?? []).map((each) => each * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(x + (kind === "resumed" ? 2 * devicePixelRatio : 0), top);
      ctx.lineTo(x + (kind === "resumed" ? 2 * devicePixelRatio : 0), top + height);
      ctx.stroke();
      if (isAlert) triangle(ctx, x, top, kind === "open");
    }
    if (this.kind === "time") this.drawAttempts(chart);
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

  placeOf({ step, at }) {
    const { steps, x, began_at: beganAt } = this.curve;
    if (this.kind === "step") return step;
    if (this.kind === "time") return at - beganAt;
    return x[steps.findIndex((each) => each >= step)] ?? null;
  }

  // The attempts of the table below as a strip under the curve, on its axis; what goes on goes on to its end.
  drawAttempts(chart) {
    const { ctx } = chart, { left, top, width, height } = chart.bbox, begin = this.curve.began_at;
    const shown = periods(), newest = Math.max(...shown.map(([, , , end]) => end));
    const y = top + height + 2 * devicePixelRatio, high = 7 * devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, y, width, high);
    ctx.clip();
    for (const [, kind, from, to] of shown) {
      const isOpen = to === newest && document.body.dataset.stream;
      const [x, end] = [from, to].map((at) => chart.valToPos(at - begin, "x", true));
      const last = isOpen ? left + width : end;
      if (kind === "again") hatch(ctx, x, last, y, high);
      else {
        ctx.fillStyle = css(FILLS[kind] ?? "--hover");
        ctx.fillRect(x, y, Math.max(1, last - x), high);
      }
    }
    ctx.restore();
  }

  key(event) {
    if (!this.chart || moveCursor(this.chart, event) || !["+", "-"].includes(event.key)) return;
    const { steps } = this.curve, middle = steps[this.chart.cursor.idx ?? steps.length - 1];
    const half = ((steps.at(-1) - steps[0]) * (event.key === "+" ? 0.5 : 2)) / 2;
    zoom(Math.max(0, Math.floor(middle - half)), Math.ceil(middle + half));
    event.preventDefault();
  }

  // From one place on the axis to another, which are the steps that lie between.
  zoom(from, to) {
    const { steps } = this.curve, all = places(this.curve);
    if (this.kind === "step") return zoom(Math.max(0, Math.floor(from)), Math.ceil(to));
    const first = Math.max(0, all.findIndex((place) => place >= from));
    zoom(steps[first], steps[Math.max(first, all.findLastIndex((place) => place <= to))]);
  }
}

const FILLS = { running: "--run", provisioning: "--edge", stopping: "--run-2", evaluating: "--run-6", paused: "--warn" };
const periods = () => JSON.parse(document.querySelector(".attempts")?.dataset.periods ?? "[]");
const DASHES = { stopped: [4, 4], cleared: [1, 3] };
// Its point is down, into the curve; only an open alert's is filled.
function triangle(ctx, x, top, isFilled) {
  const [half, high] = [TRIANGLE.half, TRIANGLE.high].map((each) => each * devicePixelRatio);
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.moveTo(x - half, top);
  ctx.lineTo(x + half, top);
  ctx.lineTo(x, top + high);
  ctx.closePath();
  ctx.fillStyle = isFilled ? ctx.strokeStyle : css("--card");
  ctx.fill();
  ctx.stroke();
}
function hatch(ctx, from, to, y, high) {
  ctx.strokeStyle = css("--card");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([]);
  ctx.beginPath();
  for (let x = from; x < to; x += 5 * devicePixelRatio) { ctx.moveTo(x, y + high); ctx.lineTo(Math.min(to, x + high), y); }
  ctx.stroke();
}

let waiting;
const load = () => views.forEach((view) => view.load());
function zoom(first, last) {
  Object.assign(state, { first, last });
  keep({ from: last === null ? null : first, to: last });
  clearTimeout(waiting);
  waiting = setTimeout(load, last === null ? 0 : 150);
}
const all = () => zoom(0, null);
const redraw = () => views.forEach((view) => { if (view.curve) { view.chart?.destroy(); view.chart = undefined; view.draw(); } });

// What the address says; a number that is none is as if it were not there.
function restore() {
  // A page that is about a part of the run shows that part first.
  const { first, last } = charts.dataset;
  if (last) Object.assign(state, { first: Number(first), last: Number(last) });
  const [from, to, weight] = ["from", "to", "smooth"].map((name) => (/^\d+(\.\d+)?$/.test(chosen(name) ?? "") ? Number(chosen(name)) : null));
  if (Number.isInteger(from) && Number.isInteger(to) && from < to) Object.assign(state, { first: from, last: to });
  if (weight !== null && weight <= Number(smooth.weight.max)) smooth.weight.value = weight;
  smooth.on.checked = chosen("smooth") !== "off";
  logLoss.checked = chosen("y") === "log";
}

const showLegend = () => { document.querySelector("#strip-legend").hidden = axis.value !== "time"; };

if (charts && window.uPlot) {
  restore();
  for (const element of charts.querySelectorAll("[data-metric]")) views.push(new View(element));
  (async () => { for (const view of views) await view.load(); })();
  charts.addEventListener("dblclick", all);
  document.querySelector("#reset-zoom").addEventListener("click", all);
  axis.addEventListener("change", () => { load(); showLegend(); });
  showLegend();
  for (const field of Object.values(smooth)) field.addEventListener("change", () => {
    const isDefault = smooth.on.checked && smooth.weight.value === smooth.weight.defaultValue;
    keep({ smooth: isDefault ? null : smooth.on.checked ? smooth.weight.value : "off" });
    load();
  });
  logLoss.addEventListener("change", () => { keep({ y: logLoss.checked ? "log" : null }); redraw(); });
  document.addEventListener("theme", redraw);
  document.addEventListener("part", () => {
    if (written() === marksAsWritten) return;
    marksAsWritten = written();
    marks = JSON.parse(marksAsWritten);
    for (const { chart } of views) chart?.redraw(false);
  });
  let size;
  addEventListener("resize", () => { clearTimeout(size); size = setTimeout(() => { redraw(); load(); }, 200); });
  document.addEventListener("stream:redraw", load);
  document.addEventListener("stream:steps", ({ detail }) => {
    document.querySelector("#no-steps")?.remove();
    const hidden = document.querySelector("#curves[hidden]");
    if (hidden) {
      hidden.hidden = false;
      return load();
    }
    // An attempt that resumed made steps again: what is drawn of them is the newest attempt's.
    const attempt = detail.at(-1).attempt, isNew = state.attempt && attempt !== state.attempt;
    state.attempt = attempt;
    if (isNew) return load();
    for (const view of views) {
      for (const point of detail) view.add(point);
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
    if (event.key === "r") all();
    if (event.key === "s") smooth.on.click();
    if (event.key === "l") logLoss.click();
  });
}
