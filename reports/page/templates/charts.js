// Charts: menus choose a panel, the legend chooses models, and Vega draws both.
const MODELS = DATA.models;
const hidden = new Set();
const drawings = [];
const tip = document.getElementById("tip");
const NARROW = 620;
const MOST_NAMES = 26, NAME = 22; // at the ends of lines, and letters of each
const BASELINE = "\u0000baseline"; // no model is called so
const SHAPES = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross",
  "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z", "<": "triangle-left",
  "p": "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z", ">": "triangle-right",
  "h": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
  "*": "M0,-1.1L.3,-.35L1.05,-.35L.45,.12L.68,.9L0,.45L-.68,.9L-.45,.12L-1.05,-.35L-.3,-.35Z"};

class Drawing {
  constructor(section, chart) {
    this.section = section; this.chart = chart; this.log = {x: null, y: null};
    this.choice = [...chart.panels[0].choice];
    this.part = name => section.querySelector("." + name);
    const buttons = this.part("downloads");
    for (const [form, act] of [["SVG", () => this.picture("svg")], ["PNG", () => this.picture("png")], ["CSV", () => this.csv()]])
      buttons.append(make("button", {type: "button", text: form, onclick: act}));
    this.width = 0;
    new ResizeObserver(() => {
      clearTimeout(this.later);
      if (this.width && this.part("plot").clientWidth !== this.width) this.later = setTimeout(() => this.draw(), 120);
    }).observe(this.part("plot"));
  }

  get panel() {
    return this.chart.panels.find(panel => panel.choice.every((value, menu) => value === this.choice[menu]));
  }

  choose(menu, value) {
    this.choice[menu] = value;
    if (!this.panel) { // keep what was chosen in this menu, and as much of the others as goes with it
      const fits = panel => panel.choice.reduce((sum, found, at) => sum + (found === this.choice[at] ? 1 : 0), 0);
      const open = this.chart.panels.filter(panel => panel.choice[menu] === value);
      this.choice = [...open.reduce((best, panel) => fits(panel) > fits(best) ? panel : best).choice];
    }
    this.log = {x: null, y: null};
    this.draw();
  }

  controls() {
    const made = [];
    this.chart.menus.forEach((name, menu) => {
      const values = [...new Set(this.chart.panels.map(panel => panel.choice[menu]))];
      if (values.length < 2) return;
      const open = new Set(this.chart.panels.filter(panel => panel.choice.every((value, at) => at >= menu || value === this.choice[at])).map(panel => panel.choice[menu]));
      if (values.length <= 3 && values.every(value => value.length < 20)) {
        const group = make("span", {class: "segments", role: "group", "aria-label": name});
        for (const value of values) {
          const button = make("button", {type: "button", text: value, "data-menu": name, "aria-pressed": String(value === this.choice[menu]), onclick: () => this.choose(menu, value)});
          button.disabled = !this.chart.panels.some(panel => panel.choice[menu] === value);
          group.append(button);
        }
        made.push(group);
      } else {
        const select = make("select", {"data-menu": name, onchange: event => this.choose(menu, event.target.value)});
        for (const value of values) {
          const option = make("option", {value, text: open.has(value) ? value : `${value} …`});
          option.selected = value === this.choice[menu];
          select.append(option);
        }
        made.push(make("label", {}, name, select));
      }
    });
    for (const axis of ["x", "y"]) {
      const scale = this.panel[axis].scale;
      if (this.chart.kind === "dots" || this.chart.kind === "parallel" || !this.positive(axis)) continue;
      const on = this.log[axis] ?? scale !== "linear";
      made.push(make("button", {type: "button", text: `log ${axis}`, "data-log": axis, "aria-pressed": String(on),
        onclick: () => { this.log[axis] = !on; this.draw(); }}));
    }
    this.part("controls").replaceChildren(...made);
  }

  positive(axis) {
    return this.panel[axis].scale === "symlog" || this.panel.points.every(point => point[axis === "x" ? 1 : 2] === null || point[axis === "x" ? 1 : 2] > 0);
  }

  legend() {
    const box = this.part("legend");
    const present = [...new Set(this.panel.points.map(point => point[0]))];
    const redraw = () => drawings.forEach(drawing => drawing.draw());
    const chips = present.map(place => make("button", {type: "button", "aria-pressed": String(!hidden.has(place)), "data-model": MODELS[place].name,
      title: "click: hide or show; double click: this one alone",
      onclick: () => { hidden.has(place) ? hidden.delete(place) : hidden.add(place); redraw(); },
      onmouseenter: () => this.light(place), onmouseleave: () => this.focus(""), onfocus: () => this.light(place), onblur: () => this.focus(""),
      ondblclick: () => { const others = MODELS.map((_, at) => at).filter(at => at !== place); hidden.clear(); others.forEach(at => hidden.add(at)); redraw(); }},
      swatch(MODELS[place]), MODELS[place].name));
    if (present.length > 1) chips.push(make("button", {type: "button", class: "all", text: present.some(place => hidden.has(place)) ? "Show all" : "Hide all",
      onclick: () => { present.some(place => hidden.has(place)) ? present.forEach(place => hidden.delete(place)) : present.forEach(place => hidden.add(place)); redraw(); }}));
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.model : null;
    box.replaceChildren(...chips);
    if (focused) [...box.children].find(chip => chip.dataset.model === focused)?.focus();
  }

  // Points as Vega reads them; `i` leads back to the panel's own.
  values() {
    const panel = this.panel, logged = axis => this.scale(axis) === "log";
    const shown = [], absent = [], rank = new Map();
    panel.points.forEach((point, i) => {
      const [model, x, y, low, high, , , mark] = point;
      if (hidden.has(model)) return;
      const name = MODELS[model].name;
      if (this.chart.kind === "dots") shown.push({i, model: name, label: name, x, low, high, mark});
      else if (y !== null && !(logged("y") && y <= 0) && !(logged("x") && x <= 0)) {
        const floor = logged("y") && low !== null && low <= 0 ? null : low;
        shown.push({i, model: name, x, y, low: floor, high: floor === null ? null : high, mark, text: point[5]});
      } else {
        if (!rank.has(name)) rank.set(name, rank.size);
        absent.push({i, model: name, x, py: -9 - 9 * (rank.get(name) % 8)});
      }
    });
    return {shown, absent};
  }

  scale(axis) {
    const own = this.panel[axis].scale, on = this.log[axis];
    if (on === null || on === undefined) return own;
    return on ? (own === "symlog" ? "symlog" : "log") : "linear";
  }

  specification() {
    const spec = structuredClone(specificationOf(this.chart.kind));
    const {shown, absent} = this.values();
    if (this.chart.kind === "dots") for (const [name, x] of this.panel.rules) shown.push({model: BASELINE, label: name + "\u200b", x, low: x, high: x});
    const names = [...new Set([...shown, ...absent].map(point => point.model))];
    const looks = names.map(name => MODELS.find(model => model.name === name) || {color: "var(--quiet)", marker: "D", dashes: []});
    const scales = {
      color: {domain: names, range: looks.map(look => look.color)},
      shape: {domain: names, range: looks.map(look => SHAPES[look.marker] || "circle")},
      strokeDash: {domain: names, range: looks.map(look => look.dashes.length ? look.dashes : [1, 0])},
    };
    for (const layer of spec.layer) for (const [channel, encoding] of Object.entries(layer.encoding)) {
      if (channel === "fill" || channel === "color") encoding.scale = scales.color;
      else if (scales[channel]) encoding.scale = scales[channel];
      else if ((channel === "x" || channel === "y") && encoding.type === "quantitative" && encoding.scale !== null) this.axis(channel, encoding, shown);
    }
    spec.datasets = {points: shown, absent, names: [], rules: this.panel.rules.map(([name, x]) => ({name, x}))};
    spec.width = this.width - 2 * parseFloat(getComputedStyle(this.part("plot")).paddingLeft);
    spec.height = this.chart.kind === "dots" ? 24 * Math.max(1, new Set(shown.map(point => point.label)).size) : this.narrow ? 310 : 430;
    const longest = Math.max(0, ...names.map(name => name.length));
    if (this.chart.kind === "lines" && !this.narrow && names.length <= MOST_NAMES) spec.padding = {left: 4, top: 4, bottom: 4, right: Math.min(170, 16 + 6.8 * Math.min(longest, NAME))};
    if (this.chart.kind === "dots" && this.narrow) for (const layer of spec.layer) if (layer.encoding.y?.axis) layer.encoding.y.axis.labelLimit = 120;
    return spec;
  }

  axis(channel, encoding, shown) {
    const about = this.panel[channel], type = this.scale(channel);
    encoding.title = about.title;
    const scale = {type, nice: type === "linear"};
    const read = channel === "y" ? ["y", "low", "high"] : this.chart.kind === "dots" ? ["x", "low", "high"] : ["x"];
    const values = shown.flatMap(point => read.map(name => point[name])).filter(value => value !== null && value !== undefined);
    if (!values.length) values.push(1, 10);
    let low = Math.min(...values), high = Math.max(...values);
    if (type === "log") {
      const room = channel === "x" && this.chart.kind === "lines" ? 1.12 : 1.25;
      [low, high] = [low / room, high * room];
      scale.base = about.unit === "B" || about.unit === "tokens" ? 2 : 10;
    } else if (type === "linear") {
      const room = (high - low || Math.abs(high) || 1) * (this.chart.kind === "lines" && channel === "x" ? 0 : 0.06);
      [low, high] = [low - room, high + room];
    } else scale.constant = 1;
    scale.domain = [low, high];
    encoding.scale = scale;
    const axis = {...(encoding.axis || {})};
    if (about.unit === "tokens" && type !== "linear" && this.chart.kind === "lines") {
      axis.values = [...new Set(shown.map(point => point.x))].sort((a, b) => a - b);
      axis.labelExpr = "format(datum.value, ',')";
    } else if (about.unit === "s") axis.labelExpr = "datum.value >= 0.9999 ? format(datum.value, ',~r') + ' s' : datum.value >= 0.00099 ? format(datum.value * 1000, '~r') + ' ms' : datum.value >= 9.9e-7 ? format(datum.value * 1e6, '~r') + ' µs' : format(datum.value * 1e9, '~r') + ' ns'";
    else if (about.unit === "B") axis.labelExpr = "datum.value >= 1073741824 ? format(datum.value / 1073741824, ',~r') + ' GiB' : datum.value >= 1048576 ? format(datum.value / 1048576, '~r') + ' MiB' : datum.value >= 1024 ? format(datum.value / 1024, '~r') + ' KiB' : format(datum.value, '~r') + ' B'";
    else if (about.unit === "×") axis.labelExpr = "format(datum.value, '~r') + '×'";
    else if (type === "log") axis.labelExpr = "format(datum.value, '~s')";
    if (this.chart.kind === "parallel" && channel === "x") { // an axis for each option
      const names = about.title.split(" | ");
      encoding.title = null;
      axis.values = names.map((_, at) => at);
      axis.labelExpr = `${JSON.stringify(names)}[datum.value]`;
    } else if (type === "log") {
      if (!axis.values) axis.values = logTicks(low, high, scale.base);
    } else axis.tickCount = 6;
    encoding.axis = axis;
  }

  async draw() {
    const plot = this.part("plot");
    this.width = plot.clientWidth; this.narrow = this.width < NARROW;
    this.controls(); this.legend();
    const turn = this.turn = (this.turn || 0) + 1;
    const made = await vegaEmbed(plot, this.specification(), {actions: false, renderer: "svg", tooltip: (...all) => this.tell(...all), ast: false});
    if (turn !== this.turn) return made.finalize();
    this.view?.finalize(); this.view = made.view;
    made.view.addEventListener("click", (_, item) => {
      const keys = item?.datum?.i === undefined ? [] : this.panel.points[item.datum.i][6].map(place => CELLS.keys[place]);
      if (keys.length) { tip.hidden = true; openCells(keys); }
    });
    await this.nameLines(made.view);
    plot.dataset.drawn = String(turn);
  }

  // Names at the ends of lines, or beside points, pushed apart; none where there is no room.
  async nameLines(view) {
    if (this.chart.kind === "dots" || this.chart.kind === "parallel" || this.narrow) return;
    const {shown} = this.values(), x = view.scale("x"), y = view.scale("y"), ends = new Map();
    if (!x || !y) return;
    for (const point of shown) if (!ends.has(point.model) || point.x >= ends.get(point.model).x) ends.set(point.model, point);
    let names = [...ends.values()].map(point => ({model: point.model, px: x(point.x), py: y(point.y)})).sort((a, b) => a.py - b.py);
    if (this.chart.kind === "lines") {
      if (names.length > MOST_NAMES) return;
      apart(names, 13, view.height());
    } else {
      const taken = names.map(name => [name.px - 6, name.py - 6, name.px + 6, name.py + 6]);
      names = names.filter(name => {
        const box = [name.px + 8, name.py - 8, name.px + 12 + 7 * name.model.length, name.py + 8];
        if (box[2] > view.width() + 90 || taken.some(other => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) return false;
        taken.push(box); return true;
      });
    }
    await view.data("names", names).runAsync();
  }

  focus(name) { this.view?.signal("focus", name).run(); }

  // A hidden model is in no focus: all others would fade for nothing.
  light(place) { this.focus(hidden.has(place) ? "" : MODELS[place].name); }

  tell(_, event, item, value) {
    if (!value || item?.datum?.i === undefined) { tip.hidden = true; return; }
    const point = this.panel.points[item.datum.i], [model, x, y, low, high, text, cells] = point;
    const dots = this.chart.kind === "dots", measured = dots ? this.panel.x : this.panel.y;
    const number = dots ? x : y;
    const lines = [make("b", {text: MODELS[model].name})], through = this.chart.kind === "parallel";
    if (number !== null && !through) lines.push(make("span", {class: "value", text: written(number, measured.unit)}));
    if (low !== null && high !== null) lines.push(make("span", {class: "dim", text: `  [${written(low, measured.unit)}, ${written(high, measured.unit)}]`}));
    if (low !== null && high !== null) lines.push(make("div", {class: "dim", text: this.panel.band}));
    if (!dots && !through) lines.push(make("div", {text: `${this.panel.x.title}: ${written(x, this.panel.x.unit)}`}));
    lines.push(make("div", {text: this.panel.choice.filter(part => part !== "absolute").join(", ")}));
    if (text) lines.push(make("div", {class: number === null ? "bad" : "dim", text}));
    if (cells.length) {
      lines.push(make("div", {class: "dim", text: cells.length === 1 ? `cell ${CELLS.keys[cells[0]]}; click: its configuration` : `${cells.length} cells, the first ${CELLS.keys[cells[0]]}; click: their configuration`}));
      const command = commandOf(cells[0]);
      if (command) lines.push(make("code", {text: command}));
    }
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 14;
    let left = event.clientX + gap, top = event.clientY + gap;
    if (left + box.width > innerWidth - 6) left = Math.max(6, event.clientX - gap - box.width);
    if (top + box.height > innerHeight - 6) top = Math.max(6, event.clientY - gap - box.height);
    tip.style.left = `${left}px`; tip.style.top = `${top}px`;
  }

  name() { return [this.chart.name, ...this.panel.choice.slice(0, 2)].join("-").replaceAll(/[^A-Za-z0-9]+/g, "-").toLowerCase(); }

  // A picture for paper: always light, whatever the page is.
  async picture(form) {
    const light = name => ({"--ink": "#16181d", "--quiet": "#5c6370", "--grid": "#e9ebf0", "--paper": "#ffffff"})[name] ?? MODELS[Number(name.slice(3))].light;
    const spec = JSON.parse(JSON.stringify(this.specification()).replaceAll(/var\((--[a-z0-9]+)\)/g, (_, name) => light(name)));
    spec.background = "#ffffff"; spec.width = this.view.width(); spec.autosize = "pad"; delete spec.config.padding; delete spec.padding;
    spec.datasets.names = this.view.data("names").map(({model, px, py}) => ({model, px, py}));
    const made = await vegaEmbed(make("div"), spec, {actions: false, renderer: "none", ast: false});
    if (form === "svg") save(`${this.name()}.svg`, "image/svg+xml", await made.view.toSVG());
    else save(`${this.name()}.png`, "image/png", await made.view.toImageURL("png", 2));
    made.finalize();
  }

  csv() {
    const panel = this.panel, dots = this.chart.kind === "dots";
    const rows = panel.points.filter(point => !hidden.has(point[0])).map(([model, x, y, low, high, text, cells]) =>
      [MODELS[model].name, ...(dots ? [x] : [x, y]), low, high, text, cells.map(place => CELLS.keys[place]).join(" ")]);
    save(`${this.name()}.csv`, "text/csv", csvText([["model", panel.x.title, ...(dots ? [] : [panel.y.title]), "low", "high", "text", "cells"], ...rows]));
  }
}

// Move names, sorted by height, as little as leaves each the room of a line.
function apart(names, room, height) {
  const blocks = [];
  names.forEach((name, at) => {
    let block = {first: at, count: 1, sum: name.py};
    for (;;) { // a block stands around the mean of what its names want, within the plot
      const top = Math.max(0, Math.min(block.sum / block.count - (block.count - 1) * room / 2, height - (block.count - 1) * room));
      block.top = top;
      const above = blocks[blocks.length - 1];
      if (!above || above.top + above.count * room <= top) break;
      blocks.pop();
      block = {first: above.first, count: above.count + block.count, sum: above.sum + block.sum};
    }
    blocks.push(block);
  });
  for (const block of blocks) for (let i = 0; i < block.count; i++) names[block.first + i].py = block.top + i * room;
}

// Ticks of a logarithmic axis: powers of the base, or with 2 and 5 between, or none where few fit.
function logTicks(low, high, base) {
  const found = [], step = Math.max(1, Math.ceil(Math.log(high / low) / Math.log(base) / 9));
  for (let power = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** power <= high; power++) if (power % step === 0) found.push(base ** power);
  if (found.length > 3 || base === 2 && found.length > 1) return found;
  const fine = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) for (const part of [1, 2, 5]) { const value = part * 10 ** power; if (value >= low && value <= high) fine.push(value); }
  return fine.length > 1 ? fine : undefined;
}

function swatch(model) {
  const box = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["width", 26], ["height", 12], ["aria-hidden", "true"]]) box.setAttribute(name, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of [["x1", 1], ["x2", 25], ["y1", 6], ["y2", 6], ["stroke", model.color], ["stroke-width", 2], ["stroke-dasharray", model.dashes.join(" ")]]) line.setAttribute(name, value);
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  for (const [name, value] of [["cx", 13], ["cy", 6], ["r", 3.6], ["fill", model.color]]) dot.setAttribute(name, value);
  box.append(line, dot);
  return box;
}

for (const section of document.querySelectorAll("[data-chart]")) {
  const chart = DATA.charts.find(found => found.name === section.dataset.chart);
  const drawing = new Drawing(section, chart);
  drawings.push(drawing);
  drawing.draw();
}
