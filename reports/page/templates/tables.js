// Tables that sort, filter and are saved as CSV, by DataTables; what is absent always comes last.
async function enhanceTables() {
  const source = document.getElementById("data-tables").textContent;
  const address = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
  const {default: DataTable} = await import(address);
  URL.revokeObjectURL(address);
  const known = value => value !== "" && value !== null && value !== undefined;
  const last = (a, b, compared) => known(a) ? (known(b) ? compared : -1) : (known(b) ? 1 : 0);
  DataTable.type("measure", {order: {
    asc: (a, b) => last(a, b, a - b), desc: (a, b) => last(a, b, b - a),
  }});
  const filled = document.getElementById("table-cells");
  fillCells(filled);
  for (const table of document.querySelectorAll("table.data")) enhance(DataTable, table);
  document.documentElement.dataset.tables = "ready";
}

function fillCells(table) {
  const head = make("tr", {}, make("th", {class: "words", text: "run"}));
  for (const name of CELLS.columns) head.append(make("th", {class: name === "length" || name === "seed" ? null : "words", text: name}));
  const body = make("tbody");
  CELLS.keys.forEach((key, place) => {
    const row = make("tr", {}, make("th", {}, make("a", {href: `#cell-${key}`}, make("code", {text: key}))));
    CELLS.facts[place].slice(0, CELLS.columns.length).forEach((value, column) => {
      const number = ["length", "seed"].includes(CELLS.columns[column]);
      row.append(make("td", {class: number ? null : "words", "data-order": number ? value ?? "" : null,
        text: value === null ? "–" : number ? value.toLocaleString("en-US") : value}));
    });
    body.append(row);
  });
  table.append(make("thead", {}, head), body);
}

function enhance(DataTable, table) {
  const sectioned = "sectioned" in table.dataset;
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const measures = heads.map((cell, place) => [cell, place]).filter(([cell, place]) => !cell.classList.contains("words") && !(sectioned && place === 0)).map(([, place]) => place);
  const count = table.tBodies[0].rows.length;
  const options = {
    paging: count > 120, pageLength: 60, lengthChange: false, info: false, autoWidth: false, order: [],
    layout: {topStart: null, topEnd: null, bottomStart: count > 120 ? "paging" : null, bottomEnd: null},
    columnDefs: [{targets: measures, type: "measure"}, ...(sectioned ? [{targets: 0, visible: false}] : [])],
    ...(sectioned ? {orderFixed: {pre: [[0, "asc"]]}, rowGroup: {emptyDataGroup: null, dataSrc: row => row[0].display ?? row[0],
      startRender: (rows, group) => { const title = group.display ?? group; return title ? make("span", {text: title}) : null; }}} : {}),
  };
  // sections are told apart by their place, so that two of one title stay two
  const made = new DataTable(table, options);
  const search = make("input", {type: "search", placeholder: "filter", "aria-label": "filter this table"});
  const shown = make("span", {class: "count"});
  const tell = () => { const found = made.rows({search: "applied"}).count(); shown.textContent = found === count ? `${count} lines` : `${found} of ${count} lines`; };
  search.addEventListener("input", () => { made.search(search.value).draw(); tell(); });
  const name = table.id.replace(/^table-/, "");
  const download = make("button", {type: "button", text: "CSV", title: "what is shown, numbers at full precision"});
  download.addEventListener("click", () => save(`${name}.csv`, "text/csv", csvText(shownRows(made, heads, sectioned))));
  const box = table.closest(".scroll");
  box.before(make("div", {class: "dt-bar"}, search, download, shown));
  tell();
  const first = table.tHead.rows.length > 1 ? table.tHead.rows[0].offsetHeight : 0;
  table.style.setProperty("--first-row", first ? `${first - 1}px` : "0px");
}

function shownRows(made, heads, sectioned) {
  const groups = [...made.table().header().rows].length > 1;
  const titles = heads.map((cell, column) => {
    const above = groups ? groupOver(made.table().header().rows[0], column - (sectioned ? 1 : 0)) : "";
    return (above ? `${above}: ` : "") + cell.textContent.trim();
  });
  const lines = made.rows({search: "applied", order: "applied"}).nodes().toArray().map(row => {
    const cells = [...row.cells].map(cell => {
      const order = cell.dataset.order;
      return order !== undefined && order !== "" ? order : cell.textContent.trim();
    });
    if (sectioned && cells.length < titles.length) cells.unshift(made.cell(row, 0).node()?.textContent.trim() ?? "");
    return cells;
  });
  return [titles, ...lines];
}

function groupOver(row, column) {
  let at = 0;
  for (const cell of row.cells) { at += cell.colSpan; if (column < at) return cell.textContent.trim(); }
  return "";
}
enhanceTables();
