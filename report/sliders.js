"use strict";
/* sliders.js: replays the recorded step with other settings. bench/simulate.c answers, compiled to WebAssembly; its
 * header says which number lies where. data.whatif: {wasm (base64), recording, bytes, ready, question, command}. */

const RECORDING_COUNT = 7, QUESTION_COUNT = 15, ANSWER_COUNT = 9;
const ASK = { stage: 0, ranks: 1, accumulate: 2, firstCap: 3, cap: 4, latency: 5, bandwidth: 6 };
const ANSWER = { step: 0, compute: 1, communication: 2, exposed: 3, hidden: 4, efficiency: 5, buckets: 6, phases: 7,
    collectives: 8 };
const MEBIBYTE = 2 ** 20;
const PHASES = ["forward", "backward", "optimizer"];

/* Each slider goes through a list of values. flag: whatif's. */
const SLIDERS = [
    { name: "ranks", flag: "--ranks", values: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], label: "Ranks" },
    { name: "gbps", values: [0.1, 0.3, 1, 2.5, 5, 10, 25, 50, 100, 200, 400, 900, 3600], label: "Link, Gbit/s" },
    { name: "latency", values: [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], label: "Latency of a message, µs" },
    { name: "cap", flag: "--caps", values: ["auto", 0, 0.25, 0.5, 1, 2, 5, 10, 25, 100], label: "Bucket size, MiB" },
    { name: "accumulate", flag: "--accumulate", values: [1, 2, 4, 8, 16], label: "Micro-batches of a step" },
    { name: "stage", flag: "--stage", values: [1, 2, 3, 4], label: "Stage" },
];
const setting = {}; /* name -> value */

/* ---- the simulator ---- */

const simulator = { exports: null };
const doubles = (place, count) => new Float64Array(simulator.exports.memory.buffer, place, count);

async function loadSimulator() {
    const bytes = Uint8Array.from(atob(data.whatif.wasm), letter => letter.charCodeAt(0));
    const { instance } = await WebAssembly.instantiate(bytes, {});
    const x = simulator.exports = instance.exports, given = data.whatif;
    doubles(x.recording_bytes(), given.bytes.length).set(given.bytes);
    doubles(x.recording_ready(), given.ready.length).set(given.ready);
    doubles(x.recording(), RECORDING_COUNT).set(given.recording);
}

/* The answer to one question as {step: seconds, ...}, and the buckets' caps that were used. */
function ask(asked) {
    const x = simulator.exports, q = doubles(x.question(), QUESTION_COUNT);
    q.set(data.whatif.question);
    q[ASK.stage] = asked.stage;
    q[ASK.ranks] = asked.ranks;
    q[ASK.accumulate] = asked.accumulate;
    q[ASK.latency] = asked.latency * 1e-6;
    q[ASK.bandwidth] = asked.gbps * 1e9 / 8;
    if (asked.cap === "auto") {
        x.simulate_best_caps();
    } else {
        q[ASK.cap] = asked.cap * MEBIBYTE;
        q[ASK.firstCap] = Math.min(asked.cap, 1) * MEBIBYTE;
        x.simulate();
    }
    const a = doubles(x.answer(), ANSWER_COUNT);
    const answer = Object.fromEntries(Object.entries(ANSWER).map(([name, place]) => [name, a[place]]));
    return { ...answer, cap: q[ASK.cap], firstCap: q[ASK.firstCap] };
}

/* ---- what is shown ---- */

/* The simulated step of a rank: two lanes, as in the picture of the recorded steps. */
function drawSimulated(width) {
    const answer = ask(setting), x = simulator.exports, scale = width / answer.step / 1e3, out = [];
    const phases = doubles(x.answer_phases(), 3 * answer.phases);
    const works = doubles(x.answer_collectives(), 4 * answer.collectives);
    const bar = (y, begin, end, colour, title) => out.push(block(begin * 1e3 * scale, y,
        Math.max(0.8, (end - begin) * 1e3 * scale - 0.5), 20, colour, `${title}: ${shown((end - begin) * 1e3, 3)} ms`));
    for (let i = 0; i < answer.phases; i++)
        bar(6, phases[3 * i + 1], phases[3 * i + 2], PHASES[phases[3 * i]], PHASES[phases[3 * i]]);
    for (let i = 0; i < answer.collectives; i++)
        bar(30, works[4 * i + 1], works[4 * i + 2], "all_reduce", `all-reduce of ${works[4 * i + 3]} bytes`);
    const axis = valueAxis(0, answer.step * 1e3, 0, width, 54, "ms");
    return [chart(width, 78, "The simulated step of one rank", ...axis, ...out)];
}

/* Efficiency of all stages over the number of ranks; also the numbers of the table. */
function efficiencies() {
    const ranks = SLIDERS[0].values;
    return [1, 2, 3, 4].map(stage => ({ name: `stage ${stage}`, colour: stage, width: stage === setting.stage ? 4 : 1.5,
        points: ranks.map(count => [count, 100 * ask({ ...setting, stage, ranks: count }).efficiency]) }));
}

function drawEfficiency(width) {
    const series = efficiencies(), own = series[setting.stage - 1].points.find(([count]) => count === setting.ranks);
    return [lineChart(width, { title: "Efficiency in percent: step of one rank / step", xTitle: "ranks", xBase: 2,
        least: [0, 100], mark: own }, series)];
}

const redraws = [];

function showAnswer() {
    const answer = ask(setting), best = ask({ ...setting, cap: "auto" }), ms = seconds => seconds * 1e3;
    at("whatif-answer").replaceChildren(table("The simulated step", ["", "this setting", "with the best buckets"], [
        ["step, ms", ms(answer.step), ms(best.step)], ["computing, ms", ms(answer.compute), ms(best.compute)],
        ["exposed communication, ms", ms(answer.exposed), ms(best.exposed)],
        ["hidden communication, ms", ms(answer.hidden), ms(best.hidden)],
        ["efficiency, %", 100 * answer.efficiency, 100 * best.efficiency],
        ["buckets", String(answer.buckets), String(best.buckets)],
        ["first bucket, MiB", answer.firstCap / MEBIBYTE, best.firstCap / MEBIBYTE],
        ["other buckets, MiB", answer.cap / MEBIBYTE, best.cap / MEBIBYTE]], 3));
    const series = efficiencies();
    at("whatif-table").replaceChildren(table("Efficiency in percent", ["ranks", ...series.map(one => one.name)],
        SLIDERS[0].values.map((count, i) => [String(count), ...series.map(one => one.points[i][1])])));
    at("whatif-command").textContent = `${data.whatif.command} \\\n    ` +
        SLIDERS.filter(one => one.flag).map(one => `${one.flag} ${setting[one.name]}`).join(" ") +
        ` --link ${setting.gbps},${setting.latency}`;
    for (const redraw of redraws) redraw();
}

/* ---- the sliders ---- */

function makeSlider({ name, values, label }) {
    const output = html("output", { for: `whatif-${name}` });
    const input = html("input", { type: "range", id: `whatif-${name}`, min: 0, max: values.length - 1, step: 1,
        value: values.indexOf(setting[name]) });
    const moved = () => {
        setting[name] = values[input.value];
        output.textContent = String(setting[name]);
        input.setAttribute("aria-valuetext", String(setting[name]));
    };
    moved();
    input.addEventListener("input", () => { moved(); showAnswer(); });
    return html("label", {}, `${label}: `, output, input);
}

/* The sliders begin where the recorded run was, or at the nearest value. */
function beginAtRecorded() {
    const q = data.whatif.question;
    const recorded = { ranks: q[ASK.ranks], gbps: q[ASK.bandwidth] * 8e-9, latency: q[ASK.latency] * 1e6,
        cap: q[ASK.cap] / MEBIBYTE, accumulate: q[ASK.accumulate], stage: q[ASK.stage] };
    for (const { name, values } of SLIDERS) {
        const away = value => Math.abs(value - recorded[name]);
        setting[name] = values.filter(value => value !== "auto").reduce((a, b) => away(b) < away(a) ? b : a);
    }
}

async function startSliders() {
    const body = at("whatif-body");
    if (data.whatif === null) {
        body.append(html("p", {}, "The sliders need the simulator as WebAssembly, and clang and wasm-ld were missing " +
            "when this page was made (Debian: packages clang and lld). bench/whatif answers the same in a terminal."));
        return;
    }
    await loadSimulator();
    beginAtRecorded();
    const more = (title, child) => html("details", {}, html("summary", {}, title), child);
    body.append(html("p", {}, "How long would the recorded step take with other settings? The page replays it in a " +
        "simulator, the same one that bench/whatif runs. Each rank computes as much as the recorded one did. The " +
        "sliders begin near the recorded run."),
        html("div", { class: "sliders" }, ...SLIDERS.map(makeSlider)),
        html("div", { class: "scroll", id: "whatif-answer", "aria-live": "polite" }),
        html("ul", { class: "legend", id: "whatif-lanes" }), html("div", { class: "chart", id: "whatif-simulated" }),
        html("ul", { class: "legend", id: "whatif-legend" }), html("div", { class: "chart", id: "whatif-chart" }),
        more("Table: efficiency", html("div", { class: "scroll", id: "whatif-table" })),
        more("Command", html("pre", { id: "whatif-command" })));
    legend("whatif-lanes", [...PHASES.map(kind => [kind, kind]), ["all-reduce", "all_reduce"]]);
    legend("whatif-legend", [1, 2, 3, 4].map(stage => [`stage ${stage}`, `series${stage}`]));
    redraws.push(responsive(at("whatif-simulated"), drawSimulated), responsive(at("whatif-chart"), drawEfficiency));
    showAnswer();
}

const slidersStarted = startSliders();
