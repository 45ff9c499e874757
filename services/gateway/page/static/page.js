// What every page does: the theme, ages, copying, dialogs, keys, and one stream of changes with how fresh it is.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// Theme: kept in a cookie, so that the server writes it into the page and nothing flashes.
$("#theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  document.cookie = `retune_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  document.dispatchEvent(new CustomEvent("theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("theme")));

// Ages go on by themselves, as the server writes them.
function age(seconds) {
  if (seconds < 5) return "just now";
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]])
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${name} ago`;
}
setInterval(() => $$("time").forEach((time) => {
  if (/ago$|^just now$/.test(time.textContent)) time.textContent = age((Date.now() - Date.parse(time.dateTime)) / 1000);
}), 10000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy],[data-opens],[data-closes]");
  if (!button) return;
  if (button.dataset.opens) $(`#${CSS.escape(button.dataset.opens)}`)?.showModal();
  else if ("closes" in button.dataset) button.closest("dialog").close();
  else {
    const isCopied = await navigator.clipboard?.writeText(button.dataset.copy).then(() => true, () => false);
    const text = isCopied ? null : textOf(button);
    if (text) getSelection().selectAllChildren(text);
    say(button, isCopied ? "copied" : text ? "selected: press Ctrl+C" : "select it and press Ctrl+C");
  }
});
// Without https no script may write to the clipboard: the text is selected instead.
const textOf = (button) => $$("code, pre, .cut", button.closest("section, div, p, dd, td") ?? document.body).find((each) => each.textContent === button.dataset.copy) ?? $("pre", button.closest("section, details"));
function say(button, words) {
  const note = Object.assign(document.createElement("span"), { className: "copied", role: "status", textContent: words });
  if (button.nextElementSibling?.className === "copied") button.nextElementSibling.remove();
  button.after(note);
  setTimeout(() => note.remove(), 4000);
}

// A form that commands says at once that it was sent; the answer comes from the server, the state from its events.
document.addEventListener("submit", (event) => {
  const action = event.target.dataset.asks;
  if (!action) return;
  event.target.closest("dialog")?.close();
  const now = new Date().toISOString().slice(11, 19);
  const answer = $("#answer");
  answer.innerHTML = '<p class="notice" role="status"></p>';
  answer.firstChild.textContent = `${action} asked ${now} UTC`;
  setTimeout(() => {
    if (answer.firstChild?.textContent === `${action} asked ${now} UTC`) answer.firstChild.textContent += ", waiting: it is safe to leave this page";
  }, 10000);
});
document.addEventListener("htmx:error", () => {
  const answer = $("#answer");
  if (answer) answer.innerHTML = '<p class="notice bad" role="alert">The server did not answer. Nothing may have happened: look at the state above, then try again.</p>';
});

// Keys: those of one character never while somebody types, and not where they are switched off.
const singleKeys = $("#single-keys");
if (singleKeys) singleKeys.checked = localStorage.getItem("retune_single_keys") !== "off";
singleKeys?.addEventListener("change", () => localStorage.setItem("retune_single_keys", singleKeys.checked ? "on" : "off"));
let isPrefix = false;
document.addEventListener("keydown", (event) => {
  if (event.target.closest("dialog")) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") { search(event); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || !singleKeys?.checked || event.target.closest("input:not([type=checkbox]),select,textarea,[contenteditable]")) return;
  const rows = $$("#list tbody tr").map((row) => $("a", row)).filter(Boolean);
  const at = rows.indexOf(document.activeElement?.closest("tr") && $("a", document.activeElement.closest("tr")));
  if (isPrefix) {
    isPrefix = false;
    $(`.rail a[data-key="${CSS.escape(event.key)}"]`)?.click();
  } else if (event.key === "g") isPrefix = true;
  else if (event.key === "/") search(event);
  else if (event.key === "?") $("#keys").showModal();
  else if (event.key === "j" && rows.length) rows[Math.min(at + 1, rows.length - 1)].focus();
  else if (event.key === "k" && rows.length) rows[Math.max(at - 1, 0)].focus();
  else if (event.key === "x") $("input[name=runs]", rows[at]?.closest("tr"))?.click();
  else if (event.key === "c") $("#compare-chosen:not([disabled])")?.click();
  else if (event.key === "p") $("#job-commands form:is([data-asks=pause], [data-asks=resume]) button")?.click();
  else if (event.key === "[" || event.key === "]") item(event.key === "]" ? 1 : -1);
});

function item(by) {
  const items = $$("#items article"), at = items.indexOf(document.activeElement);
  items[Math.min(Math.max(at + by, 0), items.length - 1)]?.focus();
}

// The address holds the item that is looked at.
$("#items")?.addEventListener("focusin", ({ target }) => {
  const name = target.closest("article")?.dataset.item;
  if (name) inAddress("item", name);
});
function inAddress(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
  history.replaceState(history.state, "", url);
}
const itemOfAddress = new URL(location.href).searchParams.get("item");
if (itemOfAddress) $(`#items [data-item="${CSS.escape(itemOfAddress)}"]`)?.focus();

// Jobs that are chosen in the list are compared.
document.addEventListener("change", ({ target }) => { if (target.name === "runs") choose(); });
function choose() {
  const button = $("#compare-chosen");
  if (!button) return;
  const count = $$("input[name=runs]:checked").length;
  button.disabled = count < 2 || count > Number(button.dataset.most);
  button.textContent = count ? `Compare ${count}` : "Compare";
}
choose();
// On a phone pages and tabs are in a line: the present one is in sight.
for (const present of $$(".rail a[aria-current], .tabs a[aria-current]")) present.parentElement.scrollLeft = present.offsetLeft - present.parentElement.clientWidth / 2;

// The search is that of the page's list, else of the list of jobs.
function search(event) {
  const field = $("[data-filter]");
  if (!field && !singleKeys) return;
  event.preventDefault();
  if (field) { field.focus(); field.select(); } else location.href = document.body.dataset.search;
}
if (location.hash === "#q") $("[data-filter]")?.focus();

// Replaces what is in an element and keeps the focus, the scroll position and an open dialog. Never between the press
// and the release of a pointer or of the space bar in it: what is replaced between the two is not clicked.
let pressed = null;
const held = new Map();
function put(id, html) {
  held.delete(id);
  const element = document.getElementById(id);
  if (!element || element.innerHTML === html) return;
  if (element.contains(pressed) || $("dialog[open]", element)) { held.set(id, html); return; }
  const focused = element.contains(document.activeElement) ? focusables(element).indexOf(document.activeElement) : -1;
  const chosen = $$("input:checked[id]", element).map((each) => each.id);
  element.innerHTML = html;
  for (const id of chosen) document.getElementById(id)?.toggleAttribute("checked", true);
  if (focused >= 0) focusables(element)[focused]?.focus({ preventScroll: true });
  window.htmx?.process(element);
  document.dispatchEvent(new CustomEvent("part"));
}
const putHeld = () => [...held].forEach(([id, html]) => put(id, html));
addEventListener("pointerdown", ({ button, target }) => { if (button === 0) pressed = target; }, true);
addEventListener("keydown", ({ key, target }) => { if (key === " ") pressed = target; }, true);
// The click comes after the release; a menu or a drag takes its place.
for (const release of ["pointerup", "pointercancel", "contextmenu", "keyup"]) addEventListener(release, () => setTimeout(() => { pressed = null; putHeld(); }), true);
document.addEventListener("close", putHeld, true);
const focusables = (root) => $$("a,button,input,select,textarea", root);

// The stream. Ours is a new EventSource after each end: the browser's own gives up for good after one refusal.
const live = $("#live"), bar = $("#stale");
const LATE_MS = 8000, BAR_MS = 5000, LONGEST_MS = 30000;
let source, lastId = "", heardAt = 0, lostAt = 0, tries = 0, retry, missed = 0, isCatchingUp = false;

function address() {
  const path = $("#list")?.dataset.stream ?? document.body.dataset.stream;
  if (!path) return null;
  const url = new URL(path, location.href);
  if (lastId) url.searchParams.set("last", lastId);
  return url;
}

function show(state, text = state) {
  if (!live || (live.dataset.state === state && live.textContent === text)) return;
  live.dataset.state = state;
  live.textContent = text;
  document.body.classList.toggle("is-stale", state === "reconnecting");
}

function open() {
  close();
  const url = address();
  if (!url || document.hidden) return;
  source = new EventSource(url);
  const listen = (name, does) => source.addEventListener(name, (event) => {
    lastId = event.lastEventId;
    heardAt = Date.now();
    if (isCatchingUp) missed += name === "ready" || name === "alerts" ? 0 : 1;
    does(event.data ? JSON.parse(event.data) : null);
  });
  listen("ready", ready);
  listen("ping", () => show("live"));
  listen("ended", () => { close(); location.href = "/login"; });
  listen("part", ({ id, html }) => put(id, html));
  listen("newer", newer);
  listen("alerts", (count) => {
    const shown = $("#num-alerts");
    if (shown) Object.assign(shown, { hidden: !count, textContent: count.toLocaleString("en") });
  });
  for (const name of ["steps", "validated", "redraw", "events"]) listen(name, (data) => document.dispatchEvent(new CustomEvent(`stream:${name}`, { detail: data })));
  source.onerror = () => { close(); lost(); };
}

function close() {
  source?.close();
  source = undefined;
  clearTimeout(retry);
}

function ready() {
  show("live");
  if (lostAt && !bar.hidden) {
    bar.textContent = `caught up, ${missed} change${missed === 1 ? "" : "s"}`;
    setTimeout(() => { if (live.dataset.state === "live") bar.hidden = true; }, 4000);
  }
  lostAt = tries = missed = 0;
  isCatchingUp = false;
}

function lost() {
  lostAt ||= Date.now();
  isCatchingUp = true;
  show("reconnecting");
  const wait = Math.min(1000 * 2 ** tries++, LONGEST_MS);
  const next = Date.now() + wait;
  retry = setTimeout(open, wait);
  const tell = () => {
    if (!lostAt || Date.now() - lostAt < BAR_MS) return;
    const seconds = Math.max(0, Math.ceil((next - Date.now()) / 1000));
    bar.hidden = false;
    bar.textContent = `not live since ${new Date(lostAt).toISOString().slice(11, 19)} UTC, next try in ${seconds} s `;
    const now = document.createElement("button");
    now.textContent = "now";
    now.onclick = open;
    bar.append(now);
  };
  tell();
  clearInterval(telling);
  telling = setInterval(tell, 1000);
}
let telling;

function newer(count) {
  const line = $("#newer");
  if (!line || !count) return;
  line.hidden = false;
  line.innerHTML = `<a href="">show ${count} new</a>`;
  line.firstChild.href = location.href;
}

setInterval(() => { if (source && heardAt && Date.now() - heardAt > LATE_MS) show("late", "late"); }, 1000);
// A browser carries six streams of one server at once: a page that nobody looks at gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { close(); show("paused"); } else open();
});
addEventListener("pagehide", close);
document.addEventListener("htmx:after:swap", () => { choose(); if ($("#list")) { lastId = ""; open(); } });
document.addEventListener("stream:events", ({ detail }) => {
  const body = $("#events");
  if (!body) return;
  const top = body.getBoundingClientRect().top;
  const rows = document.createElement("template");
  rows.innerHTML = detail.html;
  const count = [...rows.content.children].filter((row) => isNew(body, row)).length;
  if (!count) return;
  for (const row of [...rows.content.children].reverse()) body.insertBefore(row, following(body, row));
  $("[data-empty]")?.removeAttribute("hidden");
  $("[data-none]")?.remove();
  if (top < 0) scrollBy(0, body.firstElementChild.getBoundingClientRect().height * count);
  trim(body);
});

// Rows with a number have their place by it: what came late goes below what overtook it, or is on an older page.
const following = (body, { dataset }) => dataset.number ? [...body.children].find((each) => Number(each.dataset.number) < Number(dataset.number)) ?? null : body.firstElementChild;
function isNew(body, row) {
  const older = $("#older")?.parentElement;
  const isKnown = row.id && document.getElementById(row.id);
  const isOlder = row.dataset.number && older && !older.hidden && body.firstElementChild && !following(body, row);
  if (isKnown || isOlder) row.remove();
  return row.parentNode !== null;
}

// A list that grows all day lets go of its oldest rows; the link below it leads to them.
function trim(body) {
  const most = Number(body.dataset.most || Infinity), older = $("#older");
  if (body.children.length <= most || !older) return;
  while (body.children.length > most) body.lastElementChild.remove();
  const url = new URL(older.href);
  url.searchParams.set("before", body.lastElementChild.dataset.number);
  older.href = url;
  older.parentElement.hidden = false;
}
if (live) open();

// A log goes on while its end is in sight.
const log = $("#log[data-log]");
if (log) {
  const more = async () => {
    if (!document.hidden && $("#follow").checked) {
      const answer = await fetch(`${log.dataset.log}&after=${log.dataset.after}`).catch(() => null);
      if (answer?.ok) {
        const { text, next } = await answer.json();
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
        if (text) {
          if (log.dataset.after === "-1") log.textContent = "";
          log.append(text);
          log.dataset.after = next;
          if (isAtEnd) log.scrollTop = log.scrollHeight;
        }
      }
    }
    setTimeout(more, 2000);
  };
  log.scrollTop = log.scrollHeight;
  setTimeout(more, 2000);
}
