"use strict";

// The form works without any of this: it shows what is typed before it is sent, and moves steps by hand.
const editor = () => document.getElementById("editor");
let isChanged = false;
let isUnseen = false;
let open = [];

const zones = document.getElementById("time-zones");
for (const zone of zones ? ["UTC", ...(Intl.supportedValuesOf?.("timeZone") ?? [])] : []) {
  const option = document.createElement("option");
  option.value = zone;
  zones.append(option);
}

document.addEventListener("input", (event) => {
  if (!event.target.form || event.target.form !== editor()) return;
  isChanged = isUnseen = true;
  touch(event.target.name);
  htmx.trigger(editor(), "preview");
});

// A preview is dropped while another request is under way, and not heard while the form is drawn anew: it is asked for again.
document.addEventListener("htmx:beforeSend", (event) => { if (event.target.id === "preview") isUnseen = false; });
for (const ended of ["htmx:afterRequest", "htmx:afterSettle"]) {
  document.addEventListener(ended, () => { if (isUnseen) htmx.trigger(editor(), "preview"); });
}

document.addEventListener("change", (event) => {
  if (event.target.form !== editor() || !event.target.name.endsWith("-runs")) return;
  press("show");
});

function touch(name) {
  const field = editor().elements.touched;
  const names = new Set(field.value.split(" ").filter(Boolean));
  names.add(name);
  field.value = [...names].join(" ");
}

// As if a button with this command had been pressed.
function press(command) {
  const button = document.getElementById("editor-drop");
  button.value = command;
  button.click();
}

window.addEventListener("beforeunload", (event) => { if (isChanged) event.preventDefault(); });
document.addEventListener("submit", (event) => { if (event.target === editor()) isChanged = false; });
document.addEventListener("click", (event) => {
  if (event.target.closest("#editor [name=do]")?.hasAttribute("hx-post")) isChanged = true;
});

// What is folded out stays so, whatever is drawn anew.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id === "editor") open = [...document.querySelectorAll("#editor details[open][id]")].map((each) => each.id);
});
document.addEventListener("htmx:afterSettle", () => {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  open = [];
  for (const place of document.querySelectorAll("#editor .field > .error")) {
    const control = place.parentElement.querySelector("input:not([type=radio]), select, textarea");
    control?.setAttribute("aria-invalid", place.childElementCount ? "true" : "false");
  }
});

let dragged = null;
document.addEventListener("dragstart", (event) => {
  const step = event.target.closest?.(".handle")?.closest("[data-step]");
  if (!step) return;
  dragged = step.dataset.step;
  event.dataTransfer.effectAllowed = "move";
  event.dataTransfer.setData("text/plain", dragged);
  event.dataTransfer.setDragImage(step, 16, 16);
});
document.addEventListener("dragover", (event) => {
  const place = dragged && placeAt(event);
  mark(place);
  if (place) event.preventDefault();
});
document.addEventListener("drop", (event) => {
  const place = dragged && placeAt(event);
  if (!place) return;
  event.preventDefault();
  press(`put.${dragged}.${place.how}.${place.key}`);
});
document.addEventListener("dragend", () => { dragged = null; mark(null); });

// The upper edge of a group is the place before it, the rest is beside its steps; below the last one is the end.
function placeAt(event) {
  const list = event.target.closest?.(".groups");
  if (!list) return null;
  const group = event.target.closest(".group");
  if (!group) return { how: "end", key: "", mark: list };
  const isBefore = event.clientY - group.getBoundingClientRect().top < 24;
  return { how: isBefore ? "before" : "beside", key: group.dataset.before, mark: group };
}

function mark(place) {
  for (const each of document.querySelectorAll("[data-drop]")) delete each.dataset.drop;
  if (place) place.mark.dataset.drop = place.how;
}
