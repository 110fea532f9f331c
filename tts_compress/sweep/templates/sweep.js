"use strict";
(() => {
  const table = document.getElementById("table");
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];

  // Sorting: numbers by value, names by the alphabet.
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (column, sign) => (a, b) => {
    const [x, y] = [value(a, column), value(b, column)];
    const [p, q] = [Number(x), Number(y)];
    if (x === "" || y === "") return (x === "") - (y === "");
    if (!Number.isNaN(p) && !Number.isNaN(q)) return sign * (p - q);
    return sign * x.localeCompare(y);
  };
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", direction);
      body.append(...rows.sort(compare(column, direction === "ascending" ? 1 : -1)));
    });
  });

  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.dataset.name.toLowerCase().includes(wanted);
      if (!row.hidden) shown += 1;
    }
    count.textContent = `${shown} of ${rows.length} shown`;
  };
  filter.addEventListener("input", show);
  document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("tools").hidden = false;
  show();
})();
