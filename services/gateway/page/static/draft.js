// A form of what is not made yet: what the server knows of it follows the fields. Without this the buttons do the same.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const form = $("[data-check]");
$$(".without-scripts").forEach((each) => { each.hidden = true; });
$$(".with-scripts").forEach((each) => { each.hidden = false; });

// Only words are replaced, never a field: what somebody types meanwhile stays.
let asked = 0, soon;
async function check({ isAsked = true } = {}) {
  const mine = ++asked;
  const body = new URLSearchParams(new FormData(form));
  const answer = await fetch(form.dataset.check, { method: "POST", body, headers: { accept: "text/html" } }).catch(() => null);
  if (mine !== asked || !answer) return;
  if (answer.redirected || !answer.ok) { if (isAsked) location.reload(); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== asked) return;
  for (const part of $$("[data-part]", page)) {
    const own = document.getElementById(part.id);
    if (own && own.innerHTML !== part.innerHTML) own.innerHTML = part.innerHTML;
  }
  for (const field of $$("[name]", form)) {
    const other = page.getElementById(field.id);
    if (!other || !field.id) continue;
    if (field.type === "radio") field.disabled = other.disabled && !field.checked;
    field.toggleAttribute("aria-invalid", other.hasAttribute("aria-invalid"));
    if (field.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true");
  }
  const folded = $("details [aria-invalid]", form)?.closest("details");
  if (folded) folded.open = true;
}

form.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(check, 400); });
// A dataset, a quota or a pool may be another one by now; what was typed is lost to no answer.
document.addEventListener("visibilitychange", () => { if (!document.hidden) check({ isAsked: false }); });
addEventListener("pageshow", (event) => { if (event.persisted) check(); });

// A problem leads to its line of the text.
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-line]");
  if (!link) return;
  event.preventDefault();
  const field = $("textarea", form), lines = field.value.split("\n"), at = Math.min(Number(link.dataset.line), lines.length);
  const start = lines.slice(0, at - 1).join("\n").length + (at > 1 ? 1 : 0);
  field.focus();
  field.setSelectionRange(start, start + lines[at - 1].length);
  field.scrollTop = (at - 4) * parseFloat(getComputedStyle(field).lineHeight);
});
