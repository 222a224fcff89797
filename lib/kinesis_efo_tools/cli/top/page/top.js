// Shows the newest look, every second. The server sends every text; here is how it is laid out, and how the last hour is drawn.
// Names come from outside: they get into the page as text and as attributes of their own, never as markup.
"use strict";

const HOUR = 3600;
const LEAST = 300; // seconds that a chart shows at least
const MANY = 12; // a stream with more shards shows the slowest, until it is unfolded
const SLOWEST = 8;
const MARGIN = { left: 4, right: 4, top: 14, bottom: 18 };

const byId = (id) => document.getElementById(id);
const unfolded = new Set(); // names of streams
let points = []; // of the last hour, oldest first
let newest = null; // the look that is shown
let pointed = null; // the time that the pointer is at, in epoch seconds

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

function write(element, text, className = element.className) {
  // What stays is left alone, so that it can be selected and read out.
  if (element.textContent !== text) element.textContent = text;
  if (element.className !== className) element.className = className;
}

function each(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => update(parent.children[index] ?? parent.appendChild(create(item)), item));
}

function show(look) {
  newest = look;
  document.title = look.title;
  write(byId("application"), look.application);
  write(byId("state"), look.word, `state ${look.tone}`);
  write(byId("about"), look.about);
  trouble(look.trouble);
  each(byId("rows"), look.rows, () => make("li"), write);
  each(byId("tiles"), look.tiles, tile, (element, { name, text, note }) => {
    [name, text, note].forEach((each, index) => write(element.children[index], each));
  });
  each(byId("remedies"), look.remedies, remedy, (element, { text, page }) => {
    write(element.firstElementChild, text);
    const link = element.lastElementChild;
    write(link, page);
    if (page.startsWith("https://")) link.href = page;
  });
  each(byId("streams"), look.streams, card, fill);
  each(byId("events"), look.events, event, (element, { at, text }) => {
    write(element.children[0], at);
    write(element.children[1], text);
  });
  charts(byId("charts"), look.charts);
}

function trouble(text) {
  byId("trouble").hidden = !text;
  write(byId("trouble"), text ?? "");
}

function remedy() {
  const element = make("p");
  element.append(make("span"), " (", make("a"), ")");
  return element;
}

function tile() {
  const element = make("div", "tile");
  element.append(make("span", "name"), make("strong"), make("p", "note"));
  return element;
}

function event() {
  const element = make("li");
  element.append(make("time"), make("span"));
  return element;
}

// A stream: its states, its charts where it is not alone, and its shards.

function card() {
  const element = make("section", "stream");
  const head = make("div", "head");
  head.append(make("h2"), make("span", "note text"), make("span", "head states"));
  const table = make("table");
  table.createTHead().insertRow();
  table.createTBody();
  const frame = make("div", "table");
  frame.append(table);
  const fold = make("button");
  fold.type = "button";
  fold.addEventListener("click", () => {
    const { name } = fold.dataset;
    if (!unfolded.delete(name)) unfolded.add(name);
    if (newest) show(newest);
  });
  element.append(head, make("div", "charts"), frame, make("p", "more"), fold);
  return element;
}

function fill(element, stream) {
  const find = (selector) => element.querySelector(selector);
  write(find("h2"), stream.name);
  write(find(".text"), stream.text);
  each(find(".states"), stream.states, () => make("span"), (badge, { tone, text }) => write(badge, text, `state ${tone}`));
  charts(find(".charts"), stream.charts);
  const styles = stream.heads.map(({ justify, spare }) => `${justify} spare${spare}`);
  each(find("thead tr"), stream.heads, () => make("th"), (cell, { text }) => write(cell, text));
  [...find("thead tr").cells].forEach((cell, index) => { cell.className = styles[index]; cell.scope = "col"; });
  const folded = stream.rows.length > MANY && !unfolded.has(stream.name);
  each(find("tbody"), folded ? stream.rows.slice(0, SLOWEST) : stream.rows, () => make("tr"), (line, row) => {
    line.className = row.slow ? "slow" : "";
    line.title = row.id;
    each(line, row.cells, () => make("td"), write);
    row.cells.forEach((text, index) => {
      const cell = line.cells[index];
      if (index === row.state) badge(cell, text, row.tone);
      cell.className = styles[index];
    });
  });
  write(find(".more"), folded ? "" : stream.left);
  const fold = find("button");
  fold.hidden = stream.rows.length <= MANY;
  fold.dataset.name = stream.name;
  fold.setAttribute("aria-expanded", String(!folded));
  write(fold, folded ? `Show all ${stream.rows.length} shards` : `Show the ${SLOWEST} slowest`);
}

function badge(cell, text, tone) {
  if (!cell.firstElementChild) cell.replaceChildren(make("span"));
  write(cell.firstElementChild, text, `state ${tone}`);
}

// Charts.

function charts(parent, found) {
  // All of them first: each takes the width that the others leave.
  each(parent, found, chart, () => {});
  each(parent, found, chart, draw);
}

function chart() {
  const element = make("div", "chart");
  const head = make("div");
  head.append(make("h3"), make("span", "keys"), make("span", "when"));
  const picture = drawn("svg", { role: "img" });
  const point = (event) => {
    const box = picture.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const [from, until] = stretch();
    pointed = from + Math.min(1, Math.max(0, share)) * (until - from);
    redraw();
  };
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("pointerleave", () => { pointed = null; redraw(); });
  element.append(head, picture);
  return element;
}

function drawn(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

function stretch() {
  // From when until when all charts go.
  const until = points.at(-1).at + newest.stretch;
  return [Math.max(until - HOUR, Math.min(points[0].at, until - LEAST)), until];
}

function figure(value, of) {
  if (value === null || value === undefined) return "-";
  const scaled = value / of.unit;
  return `${Number(scaled.toFixed(scaled < 10 ? 2 : 1))}${of.name}`;
}

function draw(element, of) {
  const picture = element.lastElementChild;
  const { width, height } = picture.getBoundingClientRect();
  if (!width || !points.length) return;
  const [from, until] = stretch();
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const top = of.steps * of.step * of.unit;
  const x = (at) => MARGIN.left + ((at - from) / (until - from)) * (right - MARGIN.left);
  const y = (value) => bottom - (Math.min(value, top) / top) * (bottom - MARGIN.top);
  const parts = [];
  for (let step = 0; step <= of.steps; step += 1) {
    const level = y(step * of.step * of.unit);
    parts.push(drawn("line", { class: "grid", x1: MARGIN.left, x2: right, y1: level, y2: level }));
    if (step) parts.push(drawn("text", { x: MARGIN.left, y: level - 3 }, figure(step * of.step * of.unit, of)));
  }
  const minutes = (until - from) / 60;
  const every = [1, 5, 15].find((each) => minutes / each <= 5) ?? 15;
  for (let ago = every; ago < minutes; ago += every) {
    parts.push(drawn("text", { x: x(until - 60 * ago), y: height - 4, "text-anchor": "middle" }, `-${ago} min`));
  }
  const shown = points.filter((point) => point.sums[of.stream] && point.at >= from - newest.stretch);
  of.series.forEach((_, index) => {
    const style = { class: `line series${index}` };
    for (const part of unbroken(shown, of, of.first + index)) {
      const line = part.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
      const [first, last] = [x(part[0][0]), x(part.at(-1)[0])];
      if (!index) parts.push(drawn("path", { class: "area series0", d: `M${line}L${last},${bottom}L${first},${bottom}Z` }));
      parts.push(drawn("path", { ...style, d: `M${line}` + (part.length > 1 ? "" : "h.01") }));
    }
  });
  const there = pointed === null ? null : nearest(shown);
  if (there) parts.push(drawn("line", { class: "cross", x1: x(there.at), x2: x(there.at), y1: MARGIN.top, y2: bottom }));
  picture.replaceChildren(...parts);
  const [title, keys, when] = element.firstElementChild.children;
  const figures = (there ?? shown.at(-1))?.sums[of.stream] ?? [];
  write(title, of.title);
  write(when, there ? new Date(1000 * there.at).toISOString().slice(11, 19) + "Z" : "");
  const texts = of.series.map((name, index) => `${name} ${figure(figures[of.first + index], of)}`);
  each(keys, texts, () => make("span"), write);
  [...keys.children].forEach((key, index) => { key.className = `key series${index}`; });
  picture.setAttribute("aria-label", `${of.title}, ${of.stream || "all streams"}: ${texts.join(", ")}`);
}

function unbroken(shown, of, index) {
  // Where the run did not answer for a while, nothing is drawn.
  const parts = [];
  let before = null;
  for (const point of shown) {
    const value = point.sums[of.stream][index];
    if (value === null) continue;
    if (before === null || point.at - before > 2.5 * newest.stretch) parts.push([]);
    parts.at(-1).push([point.at, value]);
    before = point.at;
  }
  return parts;
}

function nearest(shown) {
  const distance = (point) => Math.abs(point.at - pointed);
  return shown.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), null);
}

function redraw() {
  if (!newest) return;
  charts(byId("charts"), newest.charts);
  newest.streams.forEach((stream, index) => charts(byId("streams").children[index].querySelector(".charts"), stream.charts));
}

async function look() {
  try {
    const since = points.at(-1)?.at ?? 0;
    const found = await (await fetch(`look.json?since=${since}`)).json();
    if (found) {
      // The last of them still changes. An hour before the newest they are let go, however long the page stays open.
      const first = found.points[0]?.at ?? Infinity;
      const last = found.points.at(-1)?.at ?? 0;
      points = [...points.filter((point) => point.at < first && point.at >= last - HOUR), ...found.points];
      show(found);
    }
    document.body.classList.remove("gone");
  } catch (error) {
    document.body.classList.add("gone");
    trouble(`kinesis-efo top does not answer any more: ${error.message}`);
  }
  setTimeout(look, 1000);
}

addEventListener("resize", redraw);
look();
