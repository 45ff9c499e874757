// Times: in UTC, as the server writes them, or in the zone that the address, this tab or this browser names.
const elements = (selector, root) => [...(root.matches?.(selector) ? [root] : []), ...root.querySelectorAll(selector)];
const button = document.getElementById("zone");
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
let zone = known(new URL(location.href).searchParams.get("tz")) ?? known(sessionStorage.getItem("retune_tz")) ?? known(localStorage.getItem("retune_tz")) ?? "UTC", format;

function known(name) {
  try { return name && new Intl.DateTimeFormat("en", { timeZone: name }) ? name : null; } catch { return null; }
}

function parts(time) {
  format ??= new Intl.DateTimeFormat("en-CA", { timeZone: zone, hourCycle: "h23", timeZoneName: "shortOffset", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const of = Object.fromEntries(format.formatToParts(time).map(({ type, value }) => [type, value]));
  return { day: `${of.month}-${of.day}`, clock: `${of.hour}:${of.minute}:${of.second}`, year: of.year, offset: of.timeZoneName.replace(/^GMT(\+0$)?/, "UTC") };
}

function write(element, text) { if (element.textContent !== text) element.textContent = text; }

function show(root) {
  for (const element of elements("time[datetime]", root)) {
    const { year, day, clock, offset } = parts(new Date(element.dateTime)), text = element.textContent;
    const whole = `${year}-${day} ${clock} ${offset}`;
    if (element.title) element.title = whole;
    if (/^\d\d:/.test(text)) write(element, clock);
    else if (/^\d\d-\d\d /.test(text)) write(element, `${day} ${clock}`);
    else if (/^\d{4}-/.test(text)) write(element, whole);
  }
  const { offset } = parts(new Date());
  for (const element of elements("[data-zone]", root)) write(element, offset);
}

// What comes later is written as the rest is.
const later = new MutationObserver((changes) => changes.forEach(({ target }) => target.nodeType === Node.ELEMENT_NODE && show(target)));
function choose(name) {
  zone = name;
  format = undefined;
  sessionStorage.setItem("retune_tz", zone);
  inAddress();
  show(document.body);
  button.title = `times in ${zone}; press for ${zone === "UTC" ? own : "UTC"}`;
  if (zone !== "UTC") later.observe(document.getElementById("content"), { childList: true, subtree: true }); else later.disconnect();
}

// Links, forms and searches lead to addresses without a zone: the tab keeps it, and writes it into each of them.
function inAddress() {
  const url = new URL(location.href);
  if (zone === "UTC") url.searchParams.delete("tz"); else url.searchParams.set("tz", zone);
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}

if (button) {
  choose(zone);
  button.addEventListener("click", () => {
    choose(zone === "UTC" ? own : "UTC");
    localStorage.setItem("retune_tz", zone);
  });
  document.addEventListener("htmx:after:history:update", inAddress);
  addEventListener("popstate", inAddress);
}
