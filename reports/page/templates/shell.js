"use strict";
// What all parts of the page share: its cells, small makers of elements, theme, contents.
const CELLS = JSON.parse(document.getElementById("data").textContent);

function make(tag, options, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "text") element.textContent = value;
    else if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  make("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// A spreadsheet runs text that begins like a formula: an apostrophe keeps it text, as in the files.
function csvField(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (/^[=+\-@\t\r\n]/.test(text) && !/^[-+0-9.,eE \[\]()%×]*$/.test(text)) text = "'" + text;
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}
const csvText = rows => rows.map(row => row.map(csvField).join(",") + "\n").join("");

const THEMES = ["auto", "light", "dark"];
const THEME_NAMES = {auto: "Theme: system", light: "Theme: light", dark: "Theme: dark"};
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = THEME_NAMES[theme];
}
setTheme(document.documentElement.dataset.theme);
document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme;
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  setTheme(next);
  try { localStorage.setItem("lra-theme", next); } catch { /* a browser that keeps nothing of files */ }
});

const contents = document.getElementById("contents");
const menu = document.getElementById("menu");
menu.addEventListener("click", () => menu.setAttribute("aria-expanded", contents.classList.toggle("open")));
contents.addEventListener("click", event => {
  if (event.target.closest("a")) { contents.classList.remove("open"); menu.setAttribute("aria-expanded", "false"); }
});
const links = new Map([...contents.querySelectorAll("a")].map(link => [link.getAttribute("href").slice(1), link]));
const seen = new Set();
const watcher = new IntersectionObserver(entries => {
  for (const entry of entries) entry.isIntersecting ? seen.add(entry.target.id) : seen.delete(entry.target.id);
  let first = true;
  for (const [id, link] of links) {
    link.classList.toggle("here", first && seen.has(id));
    if (seen.has(id)) first = false;
  }
}, {rootMargin: "-60px 0px -55% 0px"});
for (const id of links.keys()) {
  const section = document.getElementById(id);
  if (section) watcher.observe(section);
}

const SIZES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const TIMES = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const digits = value => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  return value.toLocaleString("en-US", {maximumSignificantDigits: size >= 1000 ? 6 : 4});
};
function written(value, unit) {
  if (unit === "s") { const [name, size] = TIMES.find(([, s]) => Math.abs(value) >= s * 0.9999) || TIMES[3]; return digits(value / size) + " " + name; }
  if (unit === "B") { const found = SIZES.find(([, s]) => Math.abs(value) >= s * 0.9999); return found ? digits(value / found[1]) + " " + found[0] : digits(value) + " B"; }
  return digits(value) + (unit && unit !== "1" && unit !== "fraction" ? " " + unit : "");
}
