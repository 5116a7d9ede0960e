"use strict";
/* charts.js: elements, tables, legends, axes, and two kinds of charts.
 * The page's data: {machine, runs: [{label, command, summary, events}], losses: {...}, whatif: {...} or null}. */
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);

/* ---- elements ---- */

const SVG = "http://www.w3.org/2000/svg";

/* Attributes that are null are left out. Children are elements or texts. */
function element(create, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {}))
        if (value !== null) create.setAttribute(name, value);
    create.append(...children);
    return create;
}
const svg = (name, attributes, ...children) => element(document.createElementNS(SVG, name), attributes, children);
const html = (name, attributes, ...children) => element(document.createElement(name), attributes, children);

/* Numbers are shown with `digits` digits after the point; what is missing as a dash. */
const shown = (value, digits = 1) => value == null ? "–" : typeof value === "number" ? value.toFixed(digits) : value;

/* Rows of texts and numbers; the first cell of a row is its heading. */
function table(caption, head, rows, digits = 1) {
    const cells = row => row.map((value, i) =>
        html(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, "data-head": head[i] }, shown(value, digits)));
    return html("table", {}, html("caption", {}, caption),
        html("thead", {}, html("tr", {}, ...head.map(title => html("th", { scope: "col" }, title)))),
        html("tbody", {}, ...rows.map(row => html("tr", {}, ...cells(row)))));
}

/* entries: [text, name of the colour]. */
function legend(place, entries) {
    at(place).replaceChildren(...entries.map(([text, colour]) =>
        html("li", {}, html("span", { style: `background: var(--${colour})`, "aria-hidden": "true" }), text)));
}

const commands = runs => runs.map(run => run.command).join("\n");

/* Calls draw(width) now and whenever the chart's width changes. It returns the chart's elements. */
function responsive(place, draw) {
    let drawn = 0;
    const redraw = () => {
        const width = Math.max(280, Math.round(place.clientWidth));
        if (width !== drawn) place.replaceChildren(...draw(drawn = width));
    };
    new ResizeObserver(redraw).observe(place);
    redraw();
    return () => { drawn = 0; redraw(); };
}

/* Kinds of memory: name, key in a summary, name of the colour. */
const MEMORY = [["weights", "weights_mb", "weights"], ["gathered weights", "gathered_weights_mb", "gathered"],
    ["weights in 16 bits", "operands_mb", "operands"], ["gradients", "gradients_mb", "gradients"],
    ["whole gradients", "whole_gradients_mb", "whole"], ["optimizer state", "optimizer_mb", "state"]];

/* ---- axes ---- */

/* Round numbers from `begin` to `end`, about `most` of them, and at least `apart` apart. Unless `apart` forbids it, there
 * are two: one alone does not say how long anything is. */
function ticks(begin, end, most, apart = 0) {
    const rough = Math.max((end - begin) / most, apart), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
    const found = [];
    for (let k = Math.ceil(begin / step); k * step <= end * 1.0001; k++) found.push(+(k * step).toPrecision(12));
    return found.length < 2 && end > begin && apart === 0 ? ticks(begin, end, 2 * most) : found;
}

const chart = (width, height, label, ...children) =>
    svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children);
const text = (x, y, anchor, words, kind) => svg("text", { x, y, "text-anchor": anchor, class: kind ?? null }, words);
const line = (x1, y1, x2, y2, attributes) => svg("line", { x1, y1, x2, y2, ...attributes });
const block = (x, y, width, height, colour, title) =>
    svg("rect", { x, y, width: Math.max(0, width), height, fill: `var(--${colour})` }, svg("title", {}, title));

/* Lines from the top to `height` at round values, with their numbers below. left, right: where begin and end lie. */
function valueAxis(begin, end, left, right, height, unit) {
    return ticks(begin, end, Math.max(3, Math.floor((right - left) / 80))).flatMap(value => {
        const x = left + (value - begin) / (end - begin) * (right - left), last = x > right - 24 && value > begin;
        const anchor = value === 0 ? "start" : last ? "end" : "middle";
        return [line(x, 0, x, height + 4, { class: "grid" }),
            text(last ? right : x, height + 18, anchor, value === 0 ? `0 ${unit}` : String(value), "soft tick x")];
    });
}

/* ---- bars ---- */

/* One row: its parts side by side, and `under` as a thin bar that ends where the first part ends. */
function drawBar(row, place, unit) {
    const { left, y, scale } = place, out = [];
    const title = part => `${row.label}, ${part.name}: ${shown(part.value)} ${unit}`;
    let x = left;
    for (const part of row.parts) {
        out.push(block(x, y, part.value * scale, 18, part.colour, title(part)));
        x += part.value * scale;
    }
    if (row.under) {
        const from = left + Math.max(0, row.parts[0].value - row.under.value) * scale;
        const width = left + row.parts[0].value * scale - from;
        out.push(block(from, y + 19, width, 6, row.under.colour, title(row.under)));
    }
    return [...out, text(x + 6, y + 14, "start", row.note, "soft")];
}

/* rows: {label, parts: [{name, colour, value}], under: one more part or nothing, note: text after the bar}. */
function barChart(place, label, unit, rows) {
    const most = pick => Math.max(...rows.map(pick));
    const longest = most(row => row.parts.reduce((sum, part) => sum + part.value, 0));
    responsive(at(place), width => {
        const narrow = width < 600, left = narrow ? 0 : 7 * most(row => row.label.length) + 12;
        const right = width - 7 * most(row => row.note.length) - 12, head = narrow ? 18 : 0, high = 34 + head;
        const scale = (right - left) / longest, bottom = rows.length * high;
        const drawn = rows.flatMap((row, i) => {
            const y = i * high + head + 4;
            const words = narrow ? text(0, y - 4, "start", row.label) : text(left - 10, y + 14, "end", row.label);
            return [words, ...drawBar(row, { left, y, scale }, unit)];
        });
        return [chart(width, bottom + 24, label, ...valueAxis(0, longest, left, right, bottom, unit), ...drawn)];
    });
}

/* ---- lines ---- */

/* An axis: where a value lies between two pixels, and where there are grid lines. base: of a logarithmic one; apart:
 * the least distance of the grid lines of a linear one. */
function makeAxis(values, [from, to], base, most, apart) {
    const log = base !== undefined, end = Math.max(...values), least = Math.min(...values);
    const begin = log ? base ** Math.floor(Math.log(least) / Math.log(base) + 0.001) : least;
    const share = value => log ? Math.log(value / begin) / Math.log(end / begin) : (value - begin) / (end - begin || 1);
    const powers = [];
    for (let value = begin; log && value <= end * 1.0001; value *= base) powers.push(+value.toPrecision(12));
    const every = Math.ceil(powers.length / most);
    return { place: value => from + share(value) * (to - from),
        grid: log ? powers.filter((_, i) => i % every === 0) : ticks(begin, end, most, apart) };
}

const brief = value => value >= 0.01 || value === 0 ? String(+value.toPrecision(4)) : value.toExponential(0);

function drawSeries(one, x, y) {
    const colour = `var(--series${one.colour})`;
    const path = one.points.map(([a, b], k) => `${k ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    return [svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": one.width ?? 2,
        "stroke-dasharray": one.dash ?? null }),
    ...one.points.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: (one.width ?? 2) / 2 + 1.5, fill: colour },
        svg("title", {}, `${one.name}: ${brief(a)}, ${b.toPrecision(6)}`)))];
}

/* What x counts is whole. options: {title, xTitle, xBase, yBase (of logarithmic axes), least (of a linear y), limit:
 * {value, text}, mark: a point}; series: {name, colour (a number), points: [[x, y]], dash, width}. A logarithmic axis
 * leaves out what is 0. */
function lineChart(width, options, series) {
    const left = 52, right = width - 20, top = 30, bottom = 240, { limit, mark } = options;
    const positive = ([a, b]) => (!options.xBase || a > 0) && (!options.yBase || b > 0);
    const kept = series.map(one => ({ ...one, points: one.points.filter(positive) }));
    const every = axis => kept.flatMap(one => one.points.map(point => point[axis]));
    const ys = [...every(1), ...(limit ? [2 * limit.value] : []), ...(options.least ?? [])];
    const x = makeAxis(every(0), [left, right], options.xBase, width > 420 ? 11 : 6, 1);
    const y = makeAxis(ys, [bottom, top], options.yBase, 6);
    const out = [text(0, 14, "start", options.title, "strong"),
        text((left + width) / 2, bottom + 36, "middle", options.xTitle, "soft")];
    for (const value of y.grid)
        out.push(line(left, y.place(value), right, y.place(value), { class: "grid" }),
            text(left - 6, y.place(value) + 4, "end", brief(value), "soft tick y"));
    for (const value of x.grid) out.push(text(x.place(value), bottom + 18, "middle", brief(value), "soft tick x"));
    if (limit) {
        const height = y.place(limit.value);
        out.push(line(left, height, right, height, { stroke: "var(--limit)", "stroke-width": 2 }),
            text(left + 6, height - 6, "start", limit.text));
    }
    out.push(...kept.flatMap(one => drawSeries(one, x.place, y.place)));
    if (mark) out.push(svg("circle", { cx: x.place(mark[0]), cy: y.place(mark[1]), r: 8, class: "here" }));
    return chart(width, bottom + 44, options.title, ...out);
}
