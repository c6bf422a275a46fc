function valueIn(row, column) {
  const cell = row.cells[column];
  return (cell.dataset.sort ?? cell.textContent).trim();
}

function compared(first, second) {
  const numbers = [Number(first), Number(second)];
  return numbers.some(Number.isNaN) ? first.localeCompare(second) : numbers[0] - numbers[1];
}

function sortBy(header) {
  const [body] = header.closest("table").tBodies;
  const before = header.getAttribute("aria-sort");
  const order = before ? (before === "ascending" ? "descending" : "ascending") : header.dataset.first ?? "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [valueIn(row, header.cellIndex), row]);
  rows.sort(([first], [second]) => (first === "") - (second === "") || sign * compared(first, second));
  body.append(...rows.map(([, row]) => row));
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
}

for (const header of document.querySelectorAll(".sortable thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  button.addEventListener("click", () => sortBy(header));
  header.append(button);
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target.scrollIntoView();
}

addEventListener("hashchange", openTarget);
openTarget();
