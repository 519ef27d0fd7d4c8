// On a phone, a table row is shown as a few lines: each cell is labelled with its column, and empty cells are hidden.
const NOTHING = ["", "–", "-"];

for (const table of document.querySelectorAll("#result_list, .panel table")) {
  if (!table.tHead) continue;
  const names = [...table.tHead.rows[0].cells].map((cell) => (cell.querySelector(".text") ?? cell).textContent.trim());
  for (const row of [...table.tBodies].flatMap((body) => [...body.rows])) {
    for (const cell of row.cells) label(cell, names[cell.cellIndex]);
  }
  table.classList.add("fold");
}

function label(cell, name) {
  const said = cell.textContent.trim();
  if (NOTHING.includes(said) && !cell.querySelector("input, img, progress")) cell.classList.add("nothing");
  const speaksForItself = cell.tagName === "TH" || cell.colSpan > 1 || cell.querySelector(".badge, input");
  if (!speaksForItself && name) cell.dataset.label = name;
}
