// A new job: fields follow the method, and a file is sent with its progress. Without this the buttons do the same.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const form = $("#new-job");
function fit() {
  const method = $("[name=method]:checked", form)?.value;
  for (const field of $$("[data-methods]", form)) field.hidden = !field.dataset.methods.split(" ").includes(method);
  for (const group of $$("[data-group]", form)) group.hidden = !$("[data-methods]:not([hidden])", group);
}

form.addEventListener("change", (event) => { if (event.target.name === "method") fit(); });
addEventListener("pageshow", (event) => { if (event.persisted) fit(); });

// The upload.
const upload = $("#upload"), input = $("#file"), drop = $("#drop"), state = $("#upload-state"), stop = $("#stop");
const bar = $("#uploading progress");
let sending;

const size = (bytes) => {
  for (const [power, unit] of [[3, "GiB"], [2, "MiB"], [1, "KiB"]]) if (bytes >= 1024 ** power) return `${(bytes / 1024 ** power).toFixed(1)} ${unit}`;
  return `${bytes} B`;
};

function say(text, isBad = false) {
  state.textContent = text;
  state.classList.toggle("errors", isBad);
}

function send(file) {
  if (!file || sending) return;
  if (file.size > Number(upload.dataset.max)) { say(`${file.name} has ${size(file.size)}, expected at most ${size(Number(upload.dataset.max))}`, true); return; }
  const body = new FormData();
  body.append("purpose", "fine-tune");
  body.append("file", file);
  sending = new XMLHttpRequest();
  sending.open("POST", upload.action);
  sending.setRequestHeader("x-csrf-token", $("[name=csrf]", upload).value);
  sending.setRequestHeader("accept", "application/json");
  sending.upload.onprogress = ({ loaded, total }) => {
    bar.value = total ? loaded / total : 0;
    say(loaded < total ? `${file.name}: ${size(loaded)} of ${size(total)} sent` : `${file.name}: sent, now it is looked at and stored`);
  };
  sending.onload = () => done(file, sending);
  sending.onerror = () => ended("The connection was lost: nothing is stored. Try again.");
  sending.onabort = () => ended("Stopped: nothing is stored.");
  $("#uploading").hidden = stop.hidden = false;
  say(`${file.name}: begins`);
  sending.send(body);
}

function ended(text) {
  sending = undefined;
  $("#uploading").hidden = stop.hidden = true;
  say(text, true);
}

function done(file, { status, responseText }) {
  let answer;
  try { answer = JSON.parse(responseText); } catch { answer = null; }
  if (status === 401) { location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`; return; }
  if (status !== 200 || !answer?.id) { ended(answer?.error?.message ?? `The server answered ${status}: nothing is stored.`); return; }
  ended("");
  const training = $("#training_file"), isFirst = !training.value;
  say(`${answer.filename} is stored as ${answer.id}${isFirst ? " and chosen as the training file." : ": choose it below for what it is."}`);
  for (const select of ["training_file", "validation_file", "holdout_file", "safety_mix"].map((id) => document.getElementById(id)))
    select.add(new Option(`${answer.filename} · ${size(answer.bytes)}`, answer.id), 1);
  if (isFirst) training.value = answer.id;
  input.value = "";
  form.dispatchEvent(new Event("input"));
}

upload.addEventListener("submit", (event) => { event.preventDefault(); send(input.files[0]); });
input.addEventListener("change", () => send(input.files[0]));
stop.addEventListener("click", () => sending?.abort());
for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => send(event.dataTransfer.files[0]));
fit();
