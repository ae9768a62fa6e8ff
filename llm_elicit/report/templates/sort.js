for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");  // without a number last
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return rising ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
