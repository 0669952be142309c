// Names come from models and engines: they become text nodes, never markup.

const found = JSON.parse(document.getElementById("data").textContent);
const PAGE_ROWS = 50;
const UNSEARCHED = 10;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ── tables ──────────────────────────────────────────────────────────────────────────────────────────────

class Table {
  constructor(place, { title, columns, rows, texts, details, sorted_by }) {
    Object.assign(this, { columns, rows, texts, details, page: 0, column: sorted_by, falling: true });
    this.searched = rows.map((row, index) =>
      [...row.filter((cell) => typeof cell === "string"), ...(details[index] ?? []).flat()].join("\n").toLowerCase());
    this.body = element("tbody");
    this.heads = columns.map((column, index) => this.head(column, index));
    const table = element("table", { ariaLabel: title }, element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    place.append(element("p", { className: "title", textContent: title }));
    if (rows.length > UNSEARCHED) place.append(this.tools(title));
    place.append(element("div", { className: "scroll" }, table));
    this.select();
  }

  head(column, index) {
    const button = element("button", { type: "button", textContent: column.name });
    button.addEventListener("click", () => {
      this.falling = this.column === index ? !this.falling : !column.is_text;
      this.column = index;
      this.select();
    });
    return element("th", { className: column.is_text ? "text" : "number", scope: "col" }, button);
  }

  tools(title) {
    this.search = element("input", { type: "search", placeholder: "search" });
    this.search.setAttribute("aria-label", `search: ${title}`);
    this.search.addEventListener("input", () => this.select());
    this.count = element("span", { className: "count" });
    this.count.setAttribute("aria-live", "polite");
    this.turns = [["‹", -1, "earlier rows"], ["›", 1, "later rows"]].map(([text, step, label]) => {
      const button = element("button", { type: "button", textContent: text, ariaLabel: label });
      button.addEventListener("click", () => { this.page += step; this.show(); });
      return button;
    });
    return element("div", { className: "tools" }, this.search, ...this.turns, this.count);
  }

  select() {
    const words = (this.search?.value ?? "").toLowerCase().split(" ").filter(Boolean);
    this.order = [...this.searched.keys()].filter((row) => words.every((word) => this.searched[row].includes(word)));
    if (this.column !== null) this.order.sort((a, b) => this.compare(this.rows[a][this.column], this.rows[b][this.column]));
    this.heads.forEach((head, index) => {
      if (index === this.column) head.ariaSort = this.falling ? "descending" : "ascending";
      else head.ariaSort = null;
    });
    this.page = 0;
    this.show();
  }

  compare(a, b) { // what is not known comes last either way
    if (a === null || b === null) return (a === null) - (b === null);
    const sign = typeof a === "string" ? collator.compare(a, b) : a - b;
    return this.falling ? -sign : sign;
  }

  show() {
    const first = this.page * PAGE_ROWS;
    const shown = this.order.slice(first, first + PAGE_ROWS);
    this.body.replaceChildren(...shown.map((row) => this.row(row)));
    if (!this.search) return;
    const last = first + shown.length;
    this.count.textContent = `${Math.min(first + 1, last)} to ${last} of ${this.order.length}`
      + (this.order.length < this.rows.length ? ` found among ${this.rows.length}` : "");
    this.turns[0].disabled = this.page === 0;
    this.turns[1].disabled = last >= this.order.length;
  }

  row(index) {
    const cells = this.rows[index].map((value, column) => element("td", {
      className: this.columns[column].is_text ? "text" : "number",
      textContent: this.texts[index][column] ?? value,
    }));
    const details = this.details[index] ?? [];
    if (details.length) {
      const list = details.map(([what, told]) => [element("dt", { textContent: what }), element("dd", { textContent: told })]);
      cells[0].replaceChildren(element("details", {},
        element("summary", { textContent: cells[0].textContent }), element("dl", {}, ...list.flat())));
    }
    return element("tr", {}, ...cells);
  }
}

const collator = new Intl.Collator("en", { numeric: true });

// ── charts ──────────────────────────────────────────────────────────────────────────────────────────────

const tooltip = document.getElementById("tooltip");
const views = new Map();

function showTooltip(handler, event, item, value) {
  tooltip.hidden = value === null || value === undefined;
  if (tooltip.hidden) return;
  const lines = Object.entries(value).map(([what, told]) => element("div", { textContent: `${what}: ${told}` }));
  tooltip.replaceChildren(...lines);
  const { clientX = 0, clientY = 0 } = event.changedTouches?.[0] ?? event;
  tooltip.style.left = `${Math.max(4, Math.min(clientX + 12, innerWidth - tooltip.offsetWidth - 8))}px`;
  tooltip.style.top = `${clientY + 16 + tooltip.offsetHeight > innerHeight ? clientY - tooltip.offsetHeight - 8 : clientY + 16}px`;
}

// For series without a colour of their own: light enough for dark labels, dark enough for a white page.
const COLOURS = ["#64a0d8", "#f0a050", "#68b87e", "#e07f7f", "#ae90d6", "#4fb5b5", "#cdb545", "#b8947a", "#e08fbd", "#9aa4ae"];

// Vega hides no tooltip of a bar that has been zoomed out of sight, but shows every other one again at once.
document.addEventListener("pointermove", () => { tooltip.hidden = true; }, { capture: true });

function looks() {
  const colour = (name) => { // what light-dark() comes to here and now
    tooltip.style.color = `var(${name})`;
    const value = getComputedStyle(tooltip).color;
    tooltip.style.color = "";
    return value;
  };
  const [text, faint, line, back] = ["--text", "--faint", "--line", "--back"].map(colour);
  return {
    background: back,
    font: "system-ui, sans-serif",
    padding: 4,
    autosize: { type: "fit", contains: "padding" },
    axis: { labelColor: text, titleColor: faint, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal", labelOverlap: true },
    legend: { labelColor: text, titleColor: faint },
    view: { stroke: null },
    mark: { color: COLOURS[0] },
    range: { category: COLOURS },
    text: { color: text },
    rule: { color: faint },
    style: { overlay: { color: text } },
  };
}

async function draw(place) {
  const spec = found.charts[place.dataset.chart];
  views.get(place)?.finalize();
  const options = { actions: false, config: looks(), defaultStyle: false, renderer: "canvas", tooltip: showTooltip };
  views.set(place, await vegaEmbed(place, spec, options));
  place.dataset.drawn = isDark() ? "dark" : "light";
}

// A chart that is hidden has no width to be drawn at: whatever changes, it is drawn when it comes into sight.
const onSight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    onSight.unobserve(target);
    draw(target);
  }
}, { rootMargin: "300px" });

// ── light and dark ──────────────────────────────────────────────────────────────────────────────────────

const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const { scheme } = document.documentElement.dataset;
  return scheme ? scheme === "dark" : dark.matches;
}

function redraw() {
  for (const place of views.keys()) onSight.observe(place);
}

dark.addEventListener("change", redraw);
document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.scheme = isDark() ? "light" : "dark";
  redraw();
});

// ── panels and details ──────────────────────────────────────────────────────────────────────────────────

function choose(label) { // in every section that has it
  for (const section of document.querySelectorAll(".part")) {
    const panels = [...section.querySelectorAll(".panel")];
    if (!panels.some((panel) => panel.dataset.label === label)) continue;
    for (const panel of panels) {
      panel.hidden = panel.dataset.label !== label;
      for (const place of panel.querySelectorAll("[data-chart]")) onSight.observe(place);
    }
    for (const tab of section.querySelectorAll(".tabs button")) tab.ariaPressed = String(tab.dataset.label === label);
  }
}

// ── the table of contents follows the reader ────────────────────────────────────────────────────────────

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const places = [...links.keys()].map((id) => document.getElementById(id));
let current = null;

function follow() { // the last place whose top has been reached, or the first
  const line = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) + 8;
  const reached = places.filter((place) => place.getBoundingClientRect().top < line);
  const atEnd = scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  const id = (atEnd ? places.at(-1) : reached.at(-1) ?? places[0]).id;
  if (id === current) return;
  links.get(current)?.removeAttribute("aria-current");
  links.get(id).setAttribute("aria-current", "true");
  current = id;
  const nav = document.querySelector("nav");
  const link = links.get(id);
  if (nav.scrollWidth > nav.clientWidth) nav.scrollTo({ left: link.offsetLeft - nav.offsetLeft - 16 });
}

addEventListener("scroll", follow, { passive: true });
addEventListener("resize", follow);

// ── start ───────────────────────────────────────────────────────────────────────────────────────────────

for (const place of document.querySelectorAll("[data-table]")) new Table(place, found.tables[place.dataset.table]);
for (const tab of document.querySelectorAll(".tabs button")) {
  tab.addEventListener("click", () => choose(tab.dataset.label));
}
for (const place of document.querySelectorAll("[data-chart]")) onSight.observe(place);
follow();
document.documentElement.dataset.ready = "";
