// What every curve is drawn with: its x axis, its numbers, and the choices that the page's address keeps.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const whole = (value) => value.toLocaleString("en");
export const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

// Four digits, as elsewhere on the page; on an axis fewer may do.
export function digits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e7) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  if (Math.abs(value) >= 1000) return whole(Math.round(value));
  return Math.abs(value) < 0.001 ? Number(value.toPrecision(3)).toExponential().replace("e+", "e") : value.toPrecision(4);
}
function short(value) {
  const text = digits(value);
  return text && Math.abs(value) >= 0.001 && Math.abs(value) < 1000 ? Number(text).toString() : text;
}

function duration(seconds) {
  const all = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  if (all < 60) return `${all} s`;
  if (all < 3600) return all % 60 ? `${Math.floor(all / 60)} min ${two(all % 60)} s` : `${all / 60} min`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${two(Math.floor((all % 3600) / 60))} min`;
  return `${Math.floor(all / 86400)} d ${Math.floor((all % 86400) / 3600)} h`;
}
function compact(number) {
  for (const [size, letter] of [[1e12, " T"], [1e9, " G"], [1e6, " M"]]) if (number >= size) return `${Number((number / size).toPrecision(3))}${letter}`;
  return whole(Math.round(number));
}

const AXES = {
  step: { tick: (value) => (Number.isInteger(value) ? whole(value) : ""), words: (value) => `step ${whole(value)}` },
  time: { tick: (value) => duration(value).replace(/ 0+ (min|h)$/, ""), words: duration, incrs: SECONDS },
  tokens: { tick: compact, words: (value) => `${compact(value)} tokens` },
};

// Where each point of a curve is on the axis that it was asked for; none where the server has its steps no more.
export const places = (curve) => curve.x ?? curve.steps;
export const words = (kind, place) => AXES[kind].words(place);
export function xAxis(kind) {
  const { tick, incrs } = AXES[kind];
  return { ...lines(), size: 34, space: kind === "step" ? 50 : 66, ticks: { ...lines().ticks, size: 12 }, ...(incrs && { incrs }), values: (chart, all) => all.map(tick) };
}

// A log scale has a line for each power of ten, for 2 and 5 times it where they are few, for every so many where they are many.
const LOG_LINES = 8;
export function powers(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.max(1, Math.ceil((last - first) / LOG_LINES)), ticks = [];
  for (let power = first; power <= last; power += step) for (const times of last - first <= 3 ? [1, 2, 5] : [1]) ticks.push(Number(`${times}e${power}`));
  return ticks.filter((tick) => tick >= low && tick <= high);
}
export function yAxis(isLog) {
  const log = { splits: (chart, axis, low, high) => powers(low, high), filter: (chart, ticks) => ticks };
  return { ...lines(), size: 60, values: (chart, all) => all.map(short), ...(isLog && log) };
}

// Where a curve is not drawn, in pixels: nothing was trained between the last step of an attempt and the next one's first.
export const gaps = (chart, curve, known) => [...known, ...(curve.breaks ?? []).map((at) => [curve.x[at - 1], curve.x[at]].map((place) => chart.valToPos(place, "x", true)))].sort(([one], [other]) => one - other);

// What is chosen is in the address, so that a link shows the same.
export const chosen = (name) => new URLSearchParams(location.search).get(name);
export function keep(choices) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(choices)) value === null ? url.searchParams.delete(name) : url.searchParams.set(name, value);
  history.replaceState(history.state, "", url.href.replaceAll("%2C", ","));
}
export const axis = document.querySelector("#x-axis");
if (axis) {
  if (Object.hasOwn(AXES, chosen("x") ?? "")) axis.value = chosen("x");
  axis.addEventListener("change", () => keep({ x: axis.value === "step" ? null : axis.value }));
}

function lines() {
  const line = { stroke: css("--line"), width: 1 };
  return { stroke: css("--muted"), grid: line, ticks: line, font: "12px system-ui" };
}

// Moves the cursor of a chart by keys; true where the key was one of them.
export function moveCursor(chart, event) {
  const all = chart.data[0], at = chart.cursor.idx ?? all.length - 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return false;
  chart.setCursor({ left: chart.valToPos(all[Math.min(Math.max(to, 0), all.length - 1)], "x"), top: 10 });
  event.preventDefault();
  return true;
}
