// Try it: one question to the base model and to a version, both answers side by side as they come.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const form = $("#ask"), question = $("#question"), button = $("button[type=submit]", form), stop = $("#stop"), state = $("#ask-state");
const SLOW_MS = 3000;
let running;

const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });
const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${number(ms / 1000, 1)} s`);

// What a replica streams: lines of `data: {…}`, of which the last is `[DONE]`.
async function* chunks(body) {
  let rest = "";
  for await (const text of parts(body.pipeThrough(new TextDecoderStream()))) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
async function* parts(stream) {
  const reader = stream.getReader();
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) yield value;
  } finally { reader.cancel().catch(() => {}); }
}

function problem(side, why, whatToDo = "", command = "") {
  const notice = Object.assign(document.createElement("p"), { className: "notice bad", textContent: why });
  const shown = [notice];
  if (whatToDo) shown.push(Object.assign(document.createElement("p"), { textContent: whatToDo }));
  if (command) shown.push(Object.assign(document.createElement("pre"), { className: "command", tabIndex: 0, textContent: command }));
  $("[data-problem]", side).replaceChildren(...shown);
}

async function refusal(side, answer) {
  if (answer.status === 401) { location.href = `/login?next=${encodeURIComponent(location.pathname)}`; return; }
  const body = await answer.json().catch(() => ({}));
  problem(side, body.error?.message ?? `The server answered ${answer.status}.`, body.what_to_do ?? "Change the question or its settings, and ask again.", body.command);
}

function figures({ first, last, asked, usage, reason, limit }) {
  const written = usage?.completion_tokens, words = [];
  if (first) words.push(`first token after ${duration(first - asked)}`);
  if (written > 1 && last > first) words.push(`${number((written - 1) / ((last - first) / 1000), 1)} tokens/s`);
  if (written !== undefined) words.push(`${number(written, 0)} token${written === 1 ? "" : "s"}`);
  if (reason === "length") words.push(`cut off at ${number(limit, 0)} tokens`);
  else if (reason && reason !== "stop") words.push(`ended: ${reason}`);
  return words.join(" · ");
}

async function ask(side, body, signal) {
  const line = $("[data-figures]", side), box = $("[data-answer]", side), text = document.createTextNode("");
  const seen = { asked: performance.now(), limit: Number(body.get("max_tokens")) };
  $("[data-problem]", side).replaceChildren();
  box.replaceChildren(text);
  side.classList.add("is-answering");
  line.textContent = "waits for the first token";
  const slow = setTimeout(() => { line.textContent = "waits for the first token: a model that is not loaded is loaded first"; }, SLOW_MS);
  try {
    body.set("which", side.dataset.side);
    const answer = await fetch(form.action, { method: "POST", body, signal, headers: { accept: "text/event-stream" } });
    if (!answer.ok) { line.textContent = ""; await refusal(side, answer); return false; }
    for await (const chunk of chunks(answer.body)) {
      if (chunk.error) { problem(side, chunk.error.message, "What came before is below. Ask again."); line.textContent = figures(seen); return false; }
      const choice = chunk.choices?.[0];
      seen.usage = chunk.usage ?? seen.usage;
      seen.reason = choice?.finish_reason ?? seen.reason;
      if (!choice?.delta?.content) continue;
      seen.last = performance.now();
      if (!seen.first) { seen.first = seen.last; clearTimeout(slow); line.textContent = figures(seen); }
      text.appendData(choice.delta.content);
    }
    line.textContent = figures(seen) || "an empty answer";
    return true;
  } catch {
    line.textContent = [signal.aborted ? "stopped" : "", figures(seen)].filter(Boolean).join(" · ");
    if (!signal.aborted) problem(side, "The connection was lost before the answer was whole.", "Ask again.");
    return false;
  } finally {
    clearTimeout(slow);
    side.classList.remove("is-answering");
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running || button.disabled) return;
  running = new AbortController();
  button.disabled = true;
  stop.hidden = false;
  state.textContent = "asked";
  const answered = await Promise.all($$("[data-side]").map((side) => ask(side, new URLSearchParams(new FormData(form)), running.signal)));
  const wasStopped = running.signal.aborted, hadFocus = document.activeElement === stop;
  running = undefined;
  button.disabled = false;
  stop.hidden = true;
  if (hadFocus) button.focus();
  const count = answered.filter(Boolean).length;
  state.textContent = wasStopped ? "stopped" : ["neither has answered", "one has answered", "both have answered"][count];
});
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
});
stop.addEventListener("click", () => running?.abort());
addEventListener("pagehide", () => running?.abort());
// Which of the two would answer follows with the stream of the page.
const away = $("#ask-away");
function follow() {
  question.disabled = Boolean(away.textContent.trim());
  button.disabled = question.disabled || Boolean(running);
}
new MutationObserver(follow).observe(away, { childList: true });
follow();
