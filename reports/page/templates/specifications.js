// A Vega-Lite specification for each kind of drawing, without data: a drawing puts in points, sizes, titles and scales.
// Colours are variables of the page's style: the dark and the printed page need no redrawing.
const CONFIG = {
  background: "transparent", padding: 4, view: {stroke: null},
  font: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
  axis: {labelColor: "var(--quiet)", titleColor: "var(--ink)", gridColor: "var(--grid)", domainColor: "var(--quiet)",
    tickColor: "var(--quiet)", labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: 500, titlePadding: 8, labelOverlap: true},
};
const FOCUSED = "(focus === '' || datum.model === focus)"; // the model under the pointer, or any where none is
const opacity = (full, faded, test = FOCUSED) => ({opacity: {condition: {test, value: full}, value: faded}});
const nominal = (field, more) => ({field, type: "nominal", ...more});
const number = (field, more) => ({field, type: "quantitative", ...more});
const pixels = field => number(field, {scale: null, axis: null});
const ofModel = () => nominal("model", {legend: null});
const layer = (data, type, mark, encoding, more) => ({data: {name: data}, mark: {type, ...mark}, encoding, ...more});
// What is next to or under a mark: what the pointer meets, and a model's name.
const hit = (size, places) => layer("points", "point", {size, filled: true, opacity: 0, cursor: "pointer"},
  {...places, color: ofModel(), tooltip: number("i")});
// A ring in the place of an uncertain number, a diamond around one of the processors' clock.
const marked = places => [[1, "circle", 90], [2, "diamond", 190]].map(([mark, shape, size]) =>
  layer("points", "point", {filled: false, size, shape, strokeWidth: 1.3}, places, {transform: [{filter: `datum.mark === ${mark}`}]}));
const named = x => layer("names", "text", {align: "left", baseline: "middle", dx: 9, fontSize: 12, limit: 150},
  {x, y: pixels("py"), color: ofModel(), text: nominal("model"), ...opacity(1, 0.15)});

const SPECIFICATIONS = {
  // Lines with bands and markers; rings on a dotted line: uncertain; diamonds: the processors' clock; crosses: absent.
  lines() {
    const x = number("x", {axis: {grid: false}}), y = number("y");
    const sound = {transform: [{filter: "datum.mark !== 1"}]};
    return [
      layer("points", "area", {}, {x, y: number("low"), y2: {field: "high"}, fill: ofModel(), ...opacity(0.13, 0.01)}, sound),
      layer("points", "line", {strokeWidth: 1, strokeDash: [1, 3]}, {x, y, color: ofModel(), detail: nominal("model"), ...opacity(1, 0.1)}),
      layer("points", "line", {strokeWidth: 2, strokeJoin: "round"}, {x, y, color: ofModel(), strokeDash: ofModel(), ...opacity(1, 0.1)}, sound),
      layer("points", "point", {filled: true, size: 52}, {x, y, color: ofModel(), shape: ofModel(), ...opacity(1, 0.1)}, sound),
      ...marked({x, y, color: ofModel()}),
      hit(380, {x, y}),
      layer("absent", "point", {filled: false, size: 60, shape: "M-.7,-.7L.7,.7M.7,-.7L-.7,.7", strokeWidth: 2, cursor: "pointer"},
        {x: number("x"), y: pixels("py"), color: ofModel(), tooltip: number("i")}),
      named({value: {expr: "width"}}),
    ];
  },

  // A dot with its interval for each model and baseline, of which dashed lines go across.
  dots() {
    const x = number("x", {axis: {grid: true}});
    const y = nominal("label", {sort: null, title: null, axis: {grid: true, labelLimit: 300, domain: false, ticks: false, labelColor: "var(--ink)"}});
    return [
      layer("rules", "rule", {strokeDash: [4, 4], stroke: "var(--quiet)", strokeWidth: 1, opacity: 0.4}, {x: number("x")}),
      layer("points", "rule", {strokeWidth: 3, opacity: 0.4}, {x: number("low"), x2: {field: "high"}, y, color: ofModel()}),
      layer("points", "point", {filled: true, size: 74}, {x, y, color: ofModel(), shape: ofModel(), ...opacity(1, 0.15)}),
      hit(400, {x, y}),
    ];
  },

  // A point with its interval for each model, and its name where there is room.
  scatter() {
    const x = number("x"), y = number("y");
    return [
      layer("points", "rule", {strokeWidth: 2, opacity: 0.3}, {x, y: number("low"), y2: {field: "high"}, color: ofModel()}),
      layer("points", "point", {filled: true, size: 110}, {x, y, color: ofModel(), shape: ofModel(), ...opacity(1, 0.15)}, {transform: [{filter: "datum.mark !== 1"}]}),
      ...marked({x, y, color: ofModel()}),
      hit(500, {x, y}),
      named(pixels("px")),
    ];
  },

  // A line for each trial across axes; a box over points keeps the lines through it.
  parallel() {
    const x = number("x", {axis: {grid: true}}), y = number("y");
    // What Vega-Lite writes for a condition, as a number that all points of a line share.
    const inside = "!length(data('box_store')) || vlSelectionTest('box_store', datum) ? 1 : 0";
    return [
      layer("points", "line", {strokeWidth: 1.4, strokeJoin: "round"},
        {x, y, color: ofModel(), detail: nominal("text"), ...opacity(0.8, 0.06, `datum.kept > 0 && ${FOCUSED}`)},
        {transform: [{calculate: inside, as: "inside"}, {joinaggregate: [{op: "sum", field: "inside", as: "kept"}], groupby: ["model", "text"]}]}),
      layer("points", "point", {filled: true, size: 40}, {x: number("x"), y, color: ofModel(), tooltip: number("i"), ...opacity(0.9, 0.06)},
        {params: [{name: "box", select: {type: "interval"}}]}),
    ];
  },
};

const specificationOf = kind => ({config: CONFIG, autosize: {type: "fit-x", contains: "padding"}, params: [{name: "focus", value: ""}], layer: SPECIFICATIONS[kind]()});
