"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");

function figures() {
  return [...document.querySelectorAll("figure.chart [data-root-id]")]
    .map((div) => [div, Bokeh.documents.map((doc) => doc.get_model_by_id(div.dataset.rootId)).find(Boolean)])
    .filter(([, figure]) => figure);
}

function paint() {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--soft", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const [, figure] of figures()) {
    for (const axis of [...figure.below, ...figure.left]) {
      axis.axis_label_text_color = axis.major_label_text_color = text;
      axis.axis_line_color = axis.major_tick_line_color = line;
    }
    for (const grid of figure.center) grid.grid_line_color = line;
  }
}

function switchAxis(button) {
  const chart = button.closest("figure");
  const [, figure] = figures().find(([div]) => chart.contains(div));
  for (const renderer of figure.renderers) {
    const source = renderer.data_source;
    if (source && source.tags.includes("switched")) source.data = {...source.data, x: source.data[button.dataset.column]};
  }
  figure.below[0].axis_label = button.dataset.title;
  for (const other of chart.querySelectorAll(".switch button")) other.setAttribute("aria-pressed", String(other === button));
}

function markWideTables() {
  for (const box of document.querySelectorAll(".scroll")) {
    const inner = box.firstElementChild;
    box.classList.toggle("wide", inner.scrollWidth > inner.clientWidth + 1);
  }
}

for (const button of document.querySelectorAll(".switch button")) button.addEventListener("click", () => switchAxis(button));
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", markWideTables);
addEventListener("resize", markWideTables);
markWideTables();
dark.addEventListener("change", paint);
const waiting = setInterval(() => {
  if (figures().length < document.querySelectorAll("figure.chart").length) return;
  clearInterval(waiting);
  paint();
  document.documentElement.dataset.charts = "drawn";
}, 50);
