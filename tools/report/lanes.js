"use strict";
/* lanes.js: the timelines of one step of all runs, to zoom, to pan, and to go through event by event.
 * An event is [rank, row (0 compute, 1 communication), name, start, duration, more], in milliseconds; duration 0 is an
 * instant. more: {bytes, sequence, algorithm, queued, waited, from}, as far as the trace has them; `from` is when the
 * gradient became ready that completed the bucket.
 * A sample of memory is [rank, time, [MB of each kind]]; it holds until the rank's next one. */

const LANE = 16, RANK_GAP = 4, RUN_HEAD = 22, AXIS = 24, LANES_LEFT = 48;
const ROWS = ["compute", "communication"];
const AREA = 40;
const MEMORY_KINDS = [...MEMORY.map(([name, , colour]) => [name, colour]), ["activations", "activations"]];
const KINDS = ["forward", "backward", "optimizer", "all_reduce", "reduce_scatter", "all_gather"];
const kindOf = event => event[2].split(" ")[0];

/* One lane for each run, rank and row, from top to bottom; and below each rank's lanes the area of its memory. */
function listLanes() {
    const lanes = [], areas = [];
    let y = 0;
    for (const run of data.runs) {
        const head = y;
        y += RUN_HEAD;
        const ranks = [...new Set(run.events.map(event => event[0]))].sort((a, b) => a - b);
        for (const rank of ranks) {
            ROWS.forEach((_, row) => {
                const events = run.events.filter(event => event[0] === rank && event[1] === row)
                    .sort((a, b) => a[3] - b[3]);
                lanes.push({ run, rank, row, events, y, head: rank === ranks[0] && row === 0 ? head : null });
                y += LANE;
            });
            areas.push({ run, rank, y, samples: run.memory.filter(sample => sample[0] === rank) });
            y += AREA;
            y += RANK_GAP;
        }
    }
    return { lanes, areas, height: y };
}

const { lanes, areas, height: lanesHeight } = listLanes();
const total = numbers => numbers.reduce((sum, number) => sum + number, 0);
const mostMemory = Math.max(...areas.flatMap(area => area.samples.map(sample => total(sample[2]))));
const longestStep = Math.max(...lanes.flatMap(lane => lane.events.map(event => event[3] + event[4])));
const view = { begin: 0, end: longestStep, width: 0 };
let chosen = null; /* {lane, index} */
const drawnEvents = new Map(); /* event -> its element */

/* ---- drawing ---- */

/* Times are x coordinates of a group that is scaled as a whole, so zooming draws nothing anew. */
function drawEvent(lane, event) {
    const [, row, , start, duration, more] = event, kind = kindOf(event), y = lane.y;
    let drawn;
    if (duration > 0 || KINDS.includes(kind)) {
        const colour = `var(--${KINDS.includes(kind) ? kind : "soft"})`;
        drawn = svg("rect", { x: start, y: y + 1, width: Math.max(duration, 0.001), height: LANE - 3, fill: colour,
            stroke: colour, class: "event" });
    } else {
        drawn = line(start, y - 2, start, y + 5, { class: "mark" });
    }
    drawnEvents.set(event, drawn);
    const from = row === 1 ? more.from : undefined;
    return from === undefined ? [drawn] : [drawn, line(from, y - LANE + 5, start, y + 2, { class: "arrow" })];
}

/* A rank's kinds of memory, one upon the other. All areas have the same scale. */
function drawArea({ run, rank, y, samples }) {
    const height = mb => y + (AREA - 2) * (1 - mb / mostMemory);
    const over = Math.max(...run.events.map(event => event[3] + event[4]));
    const end = samples.map((_, i) => samples[i + 1]?.[1] ?? over);
    return MEMORY_KINDS.map(([name, colour], kind) => {
        const below = samples.map(sample => total(sample[2].slice(0, kind)));
        const edge = levels => levels.flatMap((mb, i) => [[samples[i][1], height(mb)], [end[i], height(mb)]]);
        const points = [...edge(samples.map((sample, i) => below[i] + sample[2][kind])), ...edge(below).reverse()];
        const most = Math.max(...samples.map(sample => sample[2][kind]));
        return most === 0 ? null : svg("polygon", { points: points.map(point => point.join()).join(" "),
            fill: `var(--${colour})`, class: "area" }, svg("title", {}, `${run.label}, rank ${rank}: ${name}, at most ${shown(most)} MB`));
    }).filter(area => area !== null);
}

const moving = {}; /* the elements that follow the view */

function show() {
    const scale = (view.width - LANES_LEFT) / (view.end - view.begin);
    moving.group.setAttribute("transform", `matrix(${scale} 0 0 1 ${-view.begin * scale} 0)`);
    moving.axis.replaceChildren(...valueAxis(view.begin, view.end, LANES_LEFT, view.width, lanesHeight, "ms"));
}

function drawLanes(width) {
    view.width = width;
    moving.axis = svg("g", {});
    moving.group = svg("g", {}, ...lanes.flatMap(lane => lane.events.flatMap(event => drawEvent(lane, event))),
        ...areas.flatMap(drawArea));
    const labels = lanes.flatMap(lane => [
        ...(lane.head === null ? [] : [text(0, lane.head + 16, "start", lane.run.label, "strong")]),
        ...(lane.row === 0 ? [text(0, lane.y + LANE + 4, "start", `rank ${lane.rank}`, "soft")] : [])]);
    labels.push(...areas.map(area => text(0, area.y + AREA / 2 + 4, "start",
        `${shown(Math.max(...area.samples.map(sample => total(sample[2]))), 0)} MB`, "soft")));
    const inner = svg("svg", { x: LANES_LEFT, width: width - LANES_LEFT, height: lanesHeight, overflow: "hidden" },
        moving.group);
    show();
    mark();
    const label = "Timelines; the table below has every event";
    return [chart(width, lanesHeight + AXIS, label, moving.axis, ...labels, inner)];
}

/* ---- the view ---- */

function setView(begin, length) {
    const kept = Math.min(longestStep, Math.max(longestStep / 5000, length));
    view.begin = Math.max(0, Math.min(begin, longestStep - kept));
    view.end = view.begin + kept;
    show();
}

/* factor < 1 zooms in; `around` stays where it is. */
function zoom(factor, around) {
    const length = Math.min(longestStep, (view.end - view.begin) * factor);
    const share = (around - view.begin) / (view.end - view.begin);
    setView(around - share * length, length);
}

/* ---- the chosen event ---- */

function describe(lane, event) {
    const [, row, name, start, duration, more] = event;
    const queue = more.queued === undefined ? null : start - more.queued;
    const bytes = more.bytes === undefined ? null : String(more.bytes);
    return [lane.run.label, String(lane.rank), ROWS[row], name, shown(start, 3), shown(duration, 3), bytes,
        more.algorithm ?? null, shown(queue, 3), shown(more.waited, 3)];
}
const EVENT_HEAD = ["run", "rank", "lane", "event", "begins (ms)", "takes (ms)", "bytes", "algorithm",
    "in the queue (ms)", "training waited (ms)"];

function mark() {
    for (const drawn of at("lanes-chart").querySelectorAll(".chosen")) drawn.classList.remove("chosen");
    const event = chosen && chosen.lane.events[chosen.index];
    if (event) drawnEvents.get(event).classList.add("chosen");
    const row = event ? describe(chosen.lane, event) : ["none is chosen", ...Array(EVENT_HEAD.length - 1).fill("")];
    at("lanes-event").replaceChildren(...table("", EVENT_HEAD, [row]).children);
}

function choose(lane, index) {
    chosen = { lane, index };
    mark();
}

/* The event of a lane at a time; an instant if the pointer is in the lane's upper part and near enough to one. */
function eventAt(lane, time, reach, upper) {
    let best = -1, distance = Infinity;
    lane.events.forEach(([, , , start, duration], i) => {
        const away = Math.max(0, start - time, time - start - duration);
        const favoured = (duration === 0) === upper ? 0 : reach;
        if (away <= reach && away + favoured < distance) [best, distance] = [i, away + favoured];
    });
    return best;
}

/* Goes to the next event of the lane, or to the nearest in time of another lane. */
function step(lanesDown, eventsRight) {
    if (chosen === null) return choose(lanes[0], 0);
    const lane = lanes[Math.max(0, Math.min(lanes.length - 1, lanes.indexOf(chosen.lane) + lanesDown))];
    let index = Math.max(0, Math.min(lane.events.length - 1, chosen.index + eventsRight));
    if (lane !== chosen.lane) {
        const time = chosen.lane.events[chosen.index][3];
        const away = event => Math.abs(event[3] - time);
        index = lane.events.reduce((best, event, i) => away(event) < away(lane.events[best]) ? i : best, 0);
    }
    if (lane.events.length === 0) return;
    choose(lane, index);
    const start = lane.events[index][3], length = view.end - view.begin;
    if (start < view.begin || start > view.end) setView(start - length / 2, length);
}

/* ---- mouse and keyboard ---- */

const KEYS = {
    "+": () => zoom(0.5, (view.begin + view.end) / 2), "-": () => zoom(2, (view.begin + view.end) / 2),
    "<": () => setView(view.begin - (view.end - view.begin) / 4, view.end - view.begin),
    ">": () => setView(view.begin + (view.end - view.begin) / 4, view.end - view.begin),
    "0": () => setView(0, longestStep),
    ArrowLeft: () => step(0, -1), ArrowRight: () => step(0, 1), ArrowUp: () => step(-1, 0), ArrowDown: () => step(1, 0),
};
KEYS["="] = KEYS["+"];

function listen(place) {
    const position = pointer => {
        const box = place.querySelector("svg").getBoundingClientRect();
        const share = (pointer.clientX - box.left - LANES_LEFT) / (box.width - LANES_LEFT);
        return { time: view.begin + share * (view.end - view.begin), y: pointer.clientY - box.top };
    };
    let dragged = null;
    place.addEventListener("pointerdown", pointer => { dragged = { x: pointer.clientX, begin: view.begin }; });
    addEventListener("pointerup", () => { dragged = null; });
    addEventListener("pointercancel", () => { dragged = null; });
    place.addEventListener("pointermove", pointer => {
        const length = view.end - view.begin, perPixel = length / (view.width - LANES_LEFT);
        if (dragged && pointer.buttons) {
            setView(dragged.begin - (pointer.clientX - dragged.x) * perPixel, length);
            return;
        }
        const { time, y } = position(pointer), lane = lanes.find(one => y >= one.y - 2 && y < one.y + LANE - 2);
        const index = lane ? eventAt(lane, time, 4 * perPixel, y < lane.y + 5) : -1;
        if (index >= 0 && !(chosen && chosen.lane === lane && chosen.index === index)) choose(lane, index);
    });
    place.addEventListener("wheel", pointer => {
        if (!pointer.ctrlKey) return;
        pointer.preventDefault();
        zoom(1.2 ** Math.sign(pointer.deltaY), position(pointer).time);
    }, { passive: false });
    place.addEventListener("keydown", key => {
        if (!(key.key in KEYS) || key.ctrlKey || key.altKey || key.metaKey) return;
        key.preventDefault();
        KEYS[key.key]();
    });
    for (const button of document.querySelectorAll("[data-key]"))
        button.addEventListener("click", () => KEYS[button.dataset.key]());
}

legend("lanes-legend", KINDS.filter(kind => lanes.some(lane => lane.events.some(event => kindOf(event) === kind)))
    .map(kind => [kind.replace("_", "-"), kind]));
at("lanes-legend").append(html("li", {}, "| a gradient is ready"),
    ...(lanes.some(lane => lane.events.some(event => event[5].from !== undefined))
        ? [html("li", {}, "╲ the gradient that completed the bucket")] : []));
legend("areas-legend", MEMORY_KINDS.filter((_, kind) => areas.some(area => area.samples.some(sample => sample[2][kind] > 0))));
at("areas-table").append(table("Memory of a rank through the step, in MB: at most, and at least",
    ["run", "rank", ...MEMORY_KINDS.flatMap(([name]) => [`${name}, most`, `${name}, least`])],
    areas.map(({ run, rank, samples }) => [run.label, String(rank), ...MEMORY_KINDS.flatMap((_, kind) =>
        [Math.max, Math.min].map(of => of(...samples.map(sample => sample[2][kind]))))])));
responsive(at("lanes-chart"), drawLanes);
listen(at("lanes-chart"));
for (const run of data.runs)
    at("lanes-table").append(html("details", {}, html("summary", {}, run.label), html("div", { class: "scroll" },
        table(`${run.label}: step ${run.step}`, EVENT_HEAD.slice(1), lanes.filter(lane => lane.run === run)
            .flatMap(lane => lane.events.map(event => describe(lane, event).slice(1)))))));
at("lanes-command").textContent = commands(data.runs);
