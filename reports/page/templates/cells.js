// The dialog of one cell: what it was, what came out, how to repeat it. Everything is set as text.
const PLACES = new Map(CELLS.keys.map((key, place) => [key, place]));
const dialog = document.getElementById("cell");

const commandOf = place => CELLS.commands[place].map(word => CELLS.words[word]).join(" ");

function configurationOf(place) {
  const unlike = CELLS.unlike[place];
  if (!unlike) return [];
  const [own, lacking] = unlike;
  const absent = new Set(lacking.map(pair => CELLS.pairs[pair][0]));
  const found = new Map();
  for (const pair of CELLS.base) { const [name, value] = CELLS.pairs[pair]; if (!absent.has(name)) found.set(name, [value, false]); }
  for (const pair of own) { const [name, value] = CELLS.pairs[pair]; found.set(name, [value, true]); }
  return [...found].map(([name, [value, mine]]) => [name, value, mine]).sort((a, b) => (b[2] - a[2]) || (a[0] < b[0] ? -1 : 1));
}

function titleOf(place) {
  const [model, task, , mode, length, seed] = CELLS.facts[place];
  return [model, task, mode, length === null ? null : `length ${length.toLocaleString("en-US")}`, seed === null ? null : `seed ${seed}`]
    .filter(part => part !== null).join(" · ");
}

function copied(text) {
  const button = make("button", {type: "button", text: "Copy"});
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      const field = make("textarea", {text}); dialog.append(field); field.select(); document.execCommand("copy"); field.remove();
    }
    button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function pairTable(rows) {
  const table = make("table");
  for (const [name, value, own] of rows)
    table.append(make("tr", {class: own ? "own" : null}, make("td", {text: name}), make("td", {text: value})));
  return table;
}

function numbersOf(place) {
  const rows = (CELLS.numbers[place] || []).map(([metric, value, unit, beside]) =>
    [beside ? `${metric} (${beside})` : metric, typeof value === "number" ? written(value, unit) : value]);
  return rows;
}

function showCell(places, at) {
  const place = places[at];
  const key = CELLS.keys[place];
  const facts = CELLS.facts[place];
  const bar = make("div", {class: "bar"}, make("strong", {text: titleOf(place)}));
  if (places.length > 1) {
    const step = by => () => showCell(places, (at + by + places.length) % places.length);
    bar.append(make("button", {type: "button", "aria-label": "previous run", text: "‹", onclick: step(-1)}),
      make("span", {text: `${at + 1} of ${places.length}`}),
      make("button", {type: "button", "aria-label": "next run", text: "›", onclick: step(1)}));
  }
  bar.append(make("button", {type: "button", text: "Close", onclick: () => dialog.close()}));
  const body = make("div", {class: "body"});
  const reason = CELLS.words[facts[7]];
  body.append(make("p", {}, "run ", make("code", {class: "key", text: key}), ` · runner ${facts[2]} · `,
    make("span", {class: facts[6] === "ok" ? null : "bad", text: facts[6] + (reason ? `: ${reason}` : "")})));
  const command = commandOf(place);
  if (command) body.append(make("h3", {text: "Repeat it"}), make("pre", {class: "command", text: command}), copied(command));
  const numbers = numbersOf(place);
  if (numbers.length) body.append(make("h3", {text: "Numbers"}), pairTable(numbers));
  const configuration = configurationOf(place);
  body.append(make("h3", {text: "Configuration"}));
  if (configuration.length) {
    const table = pairTable(configuration);
    const filter = make("input", {type: "search", placeholder: "filter options", "aria-label": "filter options"});
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      for (const row of table.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    body.append(make("p", {class: "about", text: "Bold settings differ from most runs of this report."}), filter, table);
  } else body.append(make("p", {class: "about", text: `These rows came without settings: lra show ${key.slice(0, 8)} prints them on the machine that stores the run.`}));
  const machine = CELLS.environments[CELLS.machines[place]];
  if (machine.length) body.append(make("h3", {text: "Environment"}), pairTable(machine));
  dialog.replaceChildren(bar, body);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function openCells(keys) {
  const places = keys.map(key => PLACES.get(key)).filter(place => place !== undefined);
  if (places.length) { showCell(places, 0); return true; }
  return false;
}
dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
document.addEventListener("click", event => {
  const link = event.target.closest('a[href^="#cell-"]');
  if (link && openCells(link.getAttribute("href").slice(6).split(","))) event.preventDefault();
});
if (location.hash.startsWith("#cell-")) openCells(location.hash.slice(6).split(","));
