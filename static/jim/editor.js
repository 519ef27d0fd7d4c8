"use strict";

// The form works without this script, which previews changes while you type and lets you drag steps.
const editor = () => document.getElementById("editor");
let isChanged = false;
let isUnseen = false;
let held = null;

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
  if (/^steps-\d+-name$/.test(event.target.name)) call(event.target.closest("[data-step]"), event.target.value);
  htmx.trigger(editor(), "preview");
});

// A preview is dropped while another request is in progress, so it is requested again afterwards.
document.addEventListener("htmx:beforeSend", (event) => { if (editor()?.contains(event.target)) isUnseen = false; });
document.addEventListener("htmx:afterRequest", () => { if (isUnseen) htmx.trigger(editor(), "preview"); });

// Update the name of a step wherever it is shown, including its buttons.
function call(step, name) {
  for (const each of step.querySelectorAll("[data-step-name]")) each.textContent = name.trim() || "the unnamed step";
}

function touch(name) {
  const field = editor().elements.touched;
  const names = new Set(field.value.split(" ").filter(Boolean));
  names.add(name);
  field.value = [...names].join(" ");
}

// Run a command as if its button had been pressed.
function press(command) {
  const button = document.getElementById("editor-drop");
  button.value = command;
  button.click();
}

window.addEventListener("beforeunload", (event) => { if (isChanged) event.preventDefault(); });
// A missing secret may have been defined in another tab.
window.addEventListener("focus", () => { if (document.querySelector("#editor [data-secret]")) htmx.trigger(editor(), "preview"); });
document.addEventListener("submit", (event) => { if (event.target === editor()) isChanged = false; });
document.addEventListener("click", (event) => {
  if (event.target.closest("#editor [name=do]")?.hasAttribute("hx-post")) isChanged = true;
});

// When a part of the form is redrawn, the control that was used keeps the focus and its place on the screen,
// and open details stay open.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, elt } = event.detail;
  if (!editor()?.contains(target) || target.id === "preview") return;
  const used = editor().contains(document.activeElement) ? document.activeElement : elt;
  const open = [...document.querySelectorAll("#editor details[open][id]")].map((each) => each.id);
  held = { used, open, y: scrollY, top: used.getBoundingClientRect().top, alike: alike(used).indexOf(used) };
});
document.addEventListener("htmx:afterSwap", () => {
  complain();
  if (held) settle(held);
  held = null;
});

function settle({ used, open, y, top, alike: index }) {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  const added = editor().querySelector("[autofocus]");
  const same = again(used);
  scrollTo(0, y);
  if (added) show(added);
  else if (same?.getClientRects().length) {
    scrollBy(0, same.getBoundingClientRect().top - top);
    (same.disabled ? beside(same) : same)?.focus({ preventScroll: true });
  } else if (used.name === "do") show(alike(used)[index] ?? alike(used).at(-1) ?? instead(used));
  added?.removeAttribute("autofocus");
  if (used.id === "do-check") show(document.getElementById("mistakes") ?? document.getElementById("warnings"));
}

function show(control) {
  control?.focus({ preventScroll: true });
  control?.scrollIntoView({ block: "nearest" });
}

function again(used) {
  if (used.isConnected) return used;
  const by = used.id ? `#${CSS.escape(used.id)}` : `[name="${used.name}"][value="${CSS.escape(used.value)}"]`;
  return used.id || used.name ? editor().querySelector(by) : null;
}

// The buttons that run the same command on other parts.
function alike(button) {
  if (button.name !== "do") return [];
  return [...editor().querySelectorAll(`[name=do][value^="${CSS.escape(`${button.value.split(".")[0]}.`)}"]`)];
}

function beside(button) {
  return button.parentElement.querySelector("button:not(:disabled)");
}

// The control that gets the focus after the last part of a kind was removed.
function instead(button) {
  const adds = button.value.split(".")[0].replace("remove-", "add-");
  return editor().querySelector(`[name=do][value^="${CSS.escape(adds)}"]`) ?? document.getElementById("do-save");
}

// Show each error at its field, and clear the places that have no errors.
function complain() {
  const answer = document.getElementById("editor-slots");
  const told = new Map(answer ? JSON.parse(answer.textContent) : []);
  answer?.remove();
  for (const place of document.querySelectorAll("#editor .error")) {
    if (answer) tellAt(place, told.get(place.id.replace("error-", "")) ?? []);
    const control = place.closest(".field")?.querySelector("input:not([type=radio]), select, textarea");
    control?.setAttribute("aria-invalid", place.childElementCount ? "true" : "false");
  }
}

function tellAt(place, texts) {
  if ([...place.children].map((each) => each.textContent).join("\n") === texts.join("\n")) return;
  place.replaceChildren(...texts.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
}

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

// The upper edge of a group means before the group, and the rest means beside its steps. Below the last group is the end.
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
