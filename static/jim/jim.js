"use strict";

const THEMES = ["auto", "light", "dark"];
const ENOUGH = 10;
const BROWSER_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

document.addEventListener("click", (event) => {
  const on = (selector) => event.target.closest(selector);
  if (on("[data-theme-switch]")) switchTheme();
  if (on("[data-dismiss]")) on(".toast").remove();
  if (on("[data-shortcuts]")) document.getElementById("shortcuts").showModal();
  if (on("[data-close]") && on("dialog")) { event.preventDefault(); on("dialog").close(); }
  if (on("[data-copy]")) copy(on("[data-copy]"));
  if (on("a[data-field]")) { event.preventDefault(); goTo(on("a[data-field]").hash.slice(1)); }
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});

function switchTheme() {
  const now = document.documentElement.dataset.theme;
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  document.documentElement.dataset.theme = next;
  toast(`Theme: ${next === "auto" ? "system" : next}`);
}

function toast(text, tone = "") {
  for (const each of document.querySelectorAll(".toast")) if (each.firstElementChild.textContent === text) each.remove();
  const note = document.createElement("p");
  note.className = `toast ${tone}`;
  note.innerHTML = '<span></span> <button type="button" class="quiet-button" data-dismiss aria-label="Dismiss">✕</button>';
  note.firstChild.textContent = text;
  document.getElementById("toasts").append(note);
}

// Errors stay until dismissed. The stylesheet sets how long other toasts stay, and pauses while one is hovered.
document.addEventListener("animationend", (event) => { if (event.animationName === "toast-ends") event.target.remove(); });

// The clipboard API needs HTTPS or localhost; copying a selection works everywhere.
async function copy(button) {
  const source = button.dataset.copy ? document.querySelector(button.dataset.copy) : button.previousElementSibling;
  const text = source.value ?? source.textContent.trim();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

// Go from the error summary to a field, and open the details that contain it.
function goTo(id) {
  const place = document.getElementById(id);
  for (let each = place?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  const near = place?.closest(".field, .step, section");
  const control = place?.matches("input, select, textarea, [tabindex]") ? place : near?.querySelector("input:not([type=hidden]), select, textarea");
  (control ?? place)?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}

let goes = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping() || document.querySelector("dialog[open]")) return;
  if (goes) {
    goes = false;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) location.assign(link.href);
    return;
  }
  if (event.key === "g") { goes = true; setTimeout(() => { goes = false; }, 1500); }
  if (event.key === "?") document.getElementById("shortcuts").showModal();
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  }
  if (event.key === "j" || event.key === "k") moveRow(event.key === "j" ? 1 : -1);
  if (event.key === "x") document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
});

function isTyping() {
  const at = document.activeElement;
  return at && (at.matches("input:not([type=checkbox]):not([type=radio]), textarea, select") || at.isContentEditable);
}

function moveRow(by) {
  const links = [...document.querySelectorAll("[data-rows] [data-row-link]")];
  if (!links.length) return;
  const row = document.activeElement?.closest("tr, article");
  const now = links.findIndex((link) => row && link.closest("tr, article") === row);
  links[Math.min(Math.max(now + by, 0), links.length - 1)].focus();
}

document.addEventListener("change", (event) => {
  const all = event.target.closest("[data-check-all]");
  if (!all) return;
  for (const box of all.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = all.checked;
});

// Do not poll in a hidden tab, and do not redraw a part that is in use.
document.addEventListener("htmx:beforeRequest", (event) => {
  const polls = event.detail.elt.hasAttribute("data-poll") && !event.detail.requestConfig.triggeringEvent;
  if (polls && (document.hidden || isBusy(event.detail.target))) event.preventDefault();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  // A link in a polling part would inherit its swap style, and replace the dialogue.
  if (event.detail.target.id === "dialog-body") event.detail.swapOverride = "innerHTML";
  if (event.detail.elt.hasAttribute("data-poll") && isBusy(event.detail.target)) event.detail.shouldSwap = false;
});

// While content is replaced, the page is briefly longer; scroll anchoring would scroll to its end.
// Replacing an aside does not move the page.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.closest("aside")) return;
  const { style } = document.documentElement;
  style.overflowAnchor = "none";
  requestAnimationFrame(() => { style.overflowAnchor = ""; });
});

function isBusy(part) {
  const at = document.activeElement;
  const typing = at && part.contains(at) && at.matches("input, textarea, select");
  const deciding = part.querySelector("details:is(.menu, .reading)[open], tbody input[type=checkbox]:checked");
  return typing || deciding !== null;
}

document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "dialog-body") {
    const dialog = document.getElementById("dialog");
    if (!dialog.open) dialog.showModal();
  }
  tell();
  watchBoxes();
});
document.addEventListener("htmx:responseError", (event) => {
  toast(`The request failed (${event.detail.xhr.status}). Reload the page and try again.`, "error");
});
document.addEventListener("htmx:sendError", () => toast("JIM cannot be reached. Trying again."));

// Mark boxes whose content is wider than the box.
const boxes = new ResizeObserver((entries) => {
  for (const { target } of entries) target.toggleAttribute("data-overflows", target.scrollWidth > target.clientWidth);
});
function watchBoxes() {
  for (const box of document.querySelectorAll(".scroll")) boxes.observe(box);
}

// Keep relative times up to date.
function tell() {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    const text = distance((new Date(time.dateTime) - Date.now()) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
  for (const time of document.querySelectorAll("time:not([data-local])")) {
    if (BROWSER_ZONE === document.documentElement.dataset.zone) break;
    const local = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    time.title = `${time.title ? `${time.title}\n` : ""}${local} (your time)`;
    time.dataset.local = "";
  }
}

function distance(seconds) {
  if (Math.abs(seconds) < 1) return "now";
  const text = span(Math.abs(seconds));
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const counts = [];
  let left = Math.floor(seconds);
  for (const [size, unit] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    counts.push({ count, unit });
  }
  const first = counts.findIndex((each) => each.count);
  const most = counts[first].count < ENOUGH ? 2 : 1;
  return counts.slice(first, first + most).filter((each) => each.count).map((each) => `${each.count} ${each.unit}`).join(" ");
}

// Send the browser's time zone when signing in. On the time zone page, offer it with a button.
for (const each of document.querySelectorAll("[data-browser-zone]")) {
  each.value = BROWSER_ZONE;
  if (each.type === "submit" && BROWSER_ZONE !== document.documentElement.dataset.zone) {
    each.textContent = `Use this browser's time zone, ${BROWSER_ZONE}`;
    each.form.hidden = false;
  }
}
tell();
watchBoxes();
setInterval(() => { if (!document.hidden) tell(); }, 5000);
