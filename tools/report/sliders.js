"use strict";
/* sliders.js: replays the recorded step with other settings. bench/simulate.c answers, compiled to WebAssembly; its
 * header says which number lies where. data.whatif: {wasm (base64), recording, bytes, ready, question, shared_question
 * (if all ranks share the cores of this machine), command}. */

const ASK = { stage: 0, ranks: 1, accumulate: 2, firstCap: 3, cap: 4, latency: 5, bandwidth: 6, cores: 13 };
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
const setting = { shared: false }; /* name -> value */

/* ---- the simulator ---- */

const simulator = { exports: null };
const doubles = (place, count) => new Float64Array(simulator.exports.memory.buffer, place, count);

async function loadSimulator() {
    const bytes = Uint8Array.from(atob(data.whatif.wasm), letter => letter.charCodeAt(0));
    const { instance } = await WebAssembly.instantiate(bytes, {});
    const x = simulator.exports = instance.exports, given = data.whatif;
    doubles(x.recording_bytes(), given.bytes.length).set(given.bytes);
    doubles(x.recording_ready(), given.ready.length).set(given.ready);
    doubles(x.recording(), given.recording.length).set(given.recording);
}

/* The answer to one question as {step: seconds, ...}, and the buckets' caps that were used. */
function ask(asked) {
    const x = simulator.exports, given = asked.shared ? data.whatif.shared_question : data.whatif.question;
    const q = doubles(x.question(), given.length);
    q.set(given);
    q[ASK.stage] = asked.stage;
    q[ASK.ranks] = asked.ranks;
    q[ASK.accumulate] = asked.accumulate;
    q[ASK.latency] = 1e-6 * asked.latency;
    q[ASK.bandwidth] = 1e9 / 8 * asked.gbps;
    q[ASK.cap] = q[ASK.firstCap] = asked.cap === "auto" ? 0 : asked.cap * MEBIBYTE;
    if (asked.cap === "auto" && asked.stage > 1) x.simulate_best_caps();
    else x.simulate();
    const a = doubles(x.answer(), Object.keys(ANSWER).length);
    const answer = Object.fromEntries(Object.entries(ANSWER).map(([name, place]) => [name, a[place]]));
    return { ...answer, cap: q[ASK.cap], firstCap: q[ASK.firstCap] };
}

/* ---- what is shown ---- */

/* The simulated step of a rank: [colour, name, begin, end], in milliseconds. */
function simulatedEvents() {
    const answer = ask(setting), x = simulator.exports, events = [];
    const phases = doubles(x.answer_phases(), 3 * answer.phases);
    const works = doubles(x.answer_collectives(), 4 * answer.collectives);
    const add = (colour, name, begin, end) => events.push([colour, name, 1e3 * begin, 1e3 * end]);
    for (let i = 0; i < answer.phases; i++) {
        const kind = PHASES[phases[3 * i]];
        add(kind, kind, phases[3 * i + 1], phases[3 * i + 2]);
    }
    for (let i = 0; i < answer.collectives; i++)
        add("all_reduce", `all-reduce of ${works[4 * i + 3]} bytes`, works[4 * i + 1], works[4 * i + 2]);
    return { step: 1e3 * answer.step, events };
}

/* Two lanes, as in the picture of the recorded steps. */
function drawSimulated(width) {
    const { step, events } = simulatedEvents(), scale = width / step;
    const out = events.map(([colour, name, begin, end]) => block(begin * scale, colour === "all_reduce" ? 30 : 6,
        Math.max(0.8, (end - begin) * scale - 0.5), 20, colour, `${name}: ${shown(end - begin, 3)} ms`));
    const axis = valueAxis(0, step, 0, width, 54, "ms");
    return [chart(width, 78, "The simulated step of the slowest rank", ...axis, ...out)];
}

/* Efficiency of all stages over the number of ranks; also the numbers of the table. */
function efficiencies() {
    const ranks = SLIDERS[0].values;
    return [1, 2, 3, 4].map(stage => ({ name: `stage ${stage}`, colour: stage, width: stage === setting.stage ? 4 : 1.5,
        points: ranks.map(count => [count, 100 * ask({ ...setting, stage, ranks: count }).efficiency]) }));
}

function drawEfficiency(width) {
    const series = efficiencies(), own = series[setting.stage - 1].points.find(([count]) => count === setting.ranks);
    return [lineChart(width, { title: "Efficiency: step of one rank / this step, %", xTitle: "ranks", xBase: 2,
        least: [0, 100], mark: own }, series)];
}

const redraws = [];

/* What asks the same in a terminal. */
function shownCommand() {
    const { gbps, latency } = recordedSetting(), run = data.runs.find(one => one.name === "stage3");
    const cores = setting.shared ? ` --cores ${data.whatif.shared_question[ASK.cores]}` : "";
    return [data.whatif.command, run.command, "build/bench/whatif alone.trace.json stage3.trace.json " +
        `--recorded-link ${gbps},${latency} --link ${setting.gbps},${setting.latency}${cores} ` +
        SLIDERS.filter(one => one.flag).map(one => `${one.flag} ${setting[one.name]}`).join(" ")].join("\n");
}

function showAnswer() {
    const answer = ask(setting), best = ask({ ...setting, cap: "auto" }), ms = seconds => seconds * 1e3;
    at("whatif-answer").replaceChildren(table("The simulated step", ["", "this setting", "with the best buckets"], [
        ["step, ms", ms(answer.step), ms(best.step)], ["computing, ms", ms(answer.compute), ms(best.compute)],
        ["exposed: waiting for communication or slower ranks, ms", ms(answer.exposed), ms(best.exposed)],
        ["hidden: communication while the rank computes, ms", ms(answer.hidden), ms(best.hidden)],
        ["efficiency: step of one rank / this step, %", 100 * answer.efficiency, 100 * best.efficiency],
        ["buckets", String(answer.buckets), String(best.buckets)],
        ["first bucket, MiB", answer.firstCap / MEBIBYTE, best.firstCap / MEBIBYTE],
        ["other buckets, MiB", answer.cap / MEBIBYTE, best.cap / MEBIBYTE]], 3));
    at("whatif-events").replaceChildren(table("The simulated step", ["event", "begins (ms)", "takes (ms)"],
        simulatedEvents().events.map(([, name, begin, end]) => [name, begin, end - begin]), 3));
    const series = efficiencies();
    at("whatif-table").replaceChildren(table("Efficiency in percent", ["ranks", ...series.map(one => one.name)],
        SLIDERS[0].values.map((count, i) => [String(count), ...series.map(one => one.points[i][1])])));
    at("whatif-command").textContent = shownCommand();
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

/* The run that was recorded for the simulator: stage 3, of which the page shows the timeline. */
function recordedSetting() {
    const s = data.runs.find(run => run.name === "stage3").summary;
    return { ranks: s.world_size, gbps: s.flags.wire[0], latency: s.flags.wire[1], cap: s.flags.bucket_cap_mb,
        stage: s.stage, accumulate: s.flags.accumulate, shared: true };
}

/* The sliders begin there, or at the nearest values. */
function beginAtRecorded() {
    const recorded = recordedSetting();
    for (const { name, values } of SLIDERS) {
        const away = value => Math.abs(value - recorded[name]);
        setting[name] = values.filter(value => value !== "auto").reduce((a, b) => away(b) < away(a) ? b : a);
    }
}

function makeCheckbox() {
    const input = html("input", { type: "checkbox", id: "whatif-shared" });
    input.addEventListener("input", () => { setting.shared = input.checked; showAnswer(); });
    const cores = data.whatif.shared_question[ASK.cores];
    return html("label", {}, input, ` All ranks share the ${cores} cores of this machine`);
}

/* How near the simulator comes to what was measured. */
function compareWithRecorded() {
    const run = data.runs.find(one => one.name === "stage3"), measured = run.summary.step_ms.p50;
    const said = 1e3 * ask(recordedSetting()).step;
    return html("p", { id: "whatif-recorded" }, `The recorded run (${run.label}, ${run.summary.world_size} ranks on ` +
        `shared cores) took ${shown(measured)} ms for a step. With its settings and shared cores (the box below the ` +
        `sliders) the simulator says ${shown(said)} ms.`);
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
        "simulator, the same one that bench/whatif runs. Each rank computes as much as the recorded one did. Stages " +
        "3 and 4 differ only with several micro-batches. Stage 5 is not simulated."),
        compareWithRecorded(), html("div", { class: "sliders" }, ...SLIDERS.map(makeSlider)), makeCheckbox(),
        html("p", {}, "Hidden communication adds nothing to the step. An efficiency of 100 % means that more ranks " +
            "make no step longer, so that N ranks train on N times as much in the same time."),
        html("ul", { class: "legend", id: "whatif-lanes" }), html("div", { class: "chart", id: "whatif-simulated" }),
        html("div", { class: "pair" }, html("div", { class: "scroll", id: "whatif-answer", "aria-live": "polite" }),
            html("div", {}, html("ul", { class: "legend", id: "whatif-legend" }),
                html("div", { class: "chart", id: "whatif-chart" }))),
        more("Table: events", html("div", { class: "scroll", id: "whatif-events" })),
        more("Table: efficiency", html("div", { class: "scroll", id: "whatif-table" })),
        more("Command", html("pre", { id: "whatif-command" })));
    legend("whatif-lanes", [...PHASES.map(kind => [kind, kind]), ["all-reduce", "all_reduce"]]);
    legend("whatif-legend", [1, 2, 3, 4].map(stage => [`stage ${stage}`, `series${stage}`]));
    redraws.push(responsive(at("whatif-simulated"), drawSimulated), responsive(at("whatif-chart"), drawEfficiency));
    showAnswer();
}

const slidersStarted = startSliders();
