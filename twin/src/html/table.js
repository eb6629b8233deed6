(() => {
  const table = document.getElementById("points"), body = table.tBodies[0];
  const value = (row, at) => {
    const cell = row.cells[at];
    if (!cell || cell.colSpan > 1) return null;
    return cell.dataset.n === undefined ? cell.textContent : Number(cell.dataset.n);
  };
  table.querySelectorAll("th").forEach((head, at) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a, at), value(b, at)];
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    });
    body.append(...rows);
  }));
  document.getElementById("only").addEventListener("change", event => table.classList.toggle("only", event.target.checked));
})();
