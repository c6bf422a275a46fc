(function () {
  const data = JSON.parse(document.getElementById("trajectory-data").textContent);
  const slider = document.getElementById("step"), last = data.shown.length;
  slider.max = last;
  const starts = [];
  data.pieces.reduce((offset, piece) => { starts.push(offset); return offset + piece.length; }, 0);

  function kind(position, step, isTeacher) {
    const at = data.revealed_at[position];
    if (at < step) return "old";
    if (step < last && isTeacher && data.shown[step].includes(position)) return "seen";
    return at === step && step < last && !isTeacher ? "new" : "masked";
  }

  function tokens(box, step, isTeacher) {
    box.replaceChildren(...data.pieces.map((piece, position) => {
      const span = document.createElement("span"), isSpecial = /^<\|.*\|>$/.test(piece);
      span.className = `token ${kind(position, step, isTeacher)}`;
      if (position && position % data.block_length === 0) span.classList.add("edge");
      if (isSpecial) span.classList.add("special");
      span.textContent = isSpecial ? "end" : piece.replace(/\n/g, "\u21b5\n") || "\u00a0";
      return span;
    }));
  }

  function cells(table, step, isTeacher) {
    if (!data.grid) return;
    const text = data.pieces.join("");
    table.replaceChildren(...data.grid.map((row) => {
      const line = document.createElement("tr");
      for (const cell of row) {
        const box = document.createElement("td");
        const position = starts.findLastIndex((start) => start <= cell.start);
        const mark = cell.is_given ? "given" : step < last ? "" : cell.is_right ? "right" : "wrong";
        box.className = `${kind(position, step, isTeacher)} ${mark}`;
        box.textContent = text.slice(cell.start, cell.end);
        line.append(box);
      }
      return line;
    }));
  }

  function show(step) {
    slider.value = step = Math.max(0, Math.min(last, step));
    for (const [side, isTeacher] of [["student", false], ["teacher", true]]) {
      tokens(document.getElementById(side), step, isTeacher);
      cells(document.getElementById(`${side}-grid`), step, isTeacher);
    }
    const fresh = data.revealed_at.filter((at) => at === step).length;
    const seen = step < last ? data.shown[step].length : 0;
    document.getElementById("where").textContent = step === last
      ? `After the last step: the whole answer.`
      : `Step ${step + 1} of ${last}. The student fills in ${fresh} token${fresh === 1 ? "" : "s"}; the teacher sees ${seen} later token${seen === 1 ? "" : "s"}.`;
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  document.getElementById("back").addEventListener("click", () => show(Number(slider.value) - 1));
  document.getElementById("forth").addEventListener("click", () => show(Number(slider.value) + 1));
  document.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key], active = document.activeElement;
    const isHere = active === document.body || document.getElementById("viewer").contains(active);
    if (!by || !isHere || active === slider || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(Number(slider.value) + by);
  });
  const most = Math.max(...data.shown.map((seen) => seen.length));
  show(data.shown.findIndex((seen) => seen.length === most)); // where student and teacher see most unlike things
})();
