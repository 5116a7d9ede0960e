"use strict";
/* numbers.js: the three charts that are drawn from the runs' summaries (--json). */

/* ---- step time ---- */

function drawSplit() {
    legend("split-legend", [["computing: all of the step that is not waiting", "computing"],
        ["exposed: training waits for communication", "exposed"],
        ["hidden: communication while training computes, so it adds nothing to the step", "hidden"]]);
    const hidden = s => Math.max(0, s.comm_ms - s.exposed_comm_ms);
    const rows = data.runs.map(({ label, summary: s }) => ({
        label, note: `${shown(s.step_ms.p50, 0)} ms`,
        parts: [{ name: "computing", colour: "computing", value: s.step_ms.p50 - s.exposed_comm_ms },
            { name: "exposed communication", colour: "exposed", value: s.exposed_comm_ms }],
        under: { name: "hidden communication", colour: "hidden", value: hidden(s) } }));
    barChart("split-chart", "Step time of each run, divided into computing and waiting", "ms", rows);
    const head = ["run", "step", "computing", "exposed", "hidden", "communication", "hidden, % of communication",
        "forward", "backward", "optimizer", "collectives of a step", "MB that a rank sends"];
    const caption = "Medians in milliseconds. Computing is the step without the exposed communication. In stage 5, " +
        "forward and backward contain waits for gathers, so they may be longer than computing.";
    at("split-table").append(table(caption, head,
        data.runs.map(({ label, summary: s }, i) => [label, s.step_ms.p50, rows[i].parts[0].value, s.exposed_comm_ms,
            hidden(s), s.comm_ms, s.hidden_fraction == null ? null : 100 * s.hidden_fraction, s.forward_ms,
            s.backward_ms, s.optimizer_ms, s.collectives_per_step, s.wire_bytes_per_step / 1e6])));
    at("split-command").textContent = commands(data.runs);
}

/* ---- loss ---- */

const worldName = ranks => ranks === 1 ? "1 rank" : `${ranks} ranks`;

/* points: [{steps, loss, difference}]; the two have a number for each of `ranks`, of which the first is 1. */
function drawLosses() {
    const { points, ranks, command } = data.losses, others = ranks.map((_, i) => i).slice(1);
    const series = (i, value) =>
        ({ name: worldName(ranks[i]), colour: i, points: points.map(p => [p.steps, value(p)]) });
    legend("losses-legend", ranks.map((world, i) => [worldName(world), `series${i}`]));
    const losses = ranks.map((_, i) => ({ ...series(i, p => p.loss[i]), width: i === 0 ? 7 : 2,
        dash: i > 1 ? "6 6" : null }));
    responsive(at("losses-chart"), width => [lineChart(width, { title: "Loss of the last step", xTitle: "steps trained",
        least: [0] }, losses)]);
    responsive(at("difference-chart"), width => [lineChart(width, { title: "Largest difference of any weight to 1 rank",
        xTitle: "steps trained", yBase: 10, limit: { value: 1e-5, text: "1e-5: allowed" } },
    others.map(i => series(i, p => p.difference[i])))]);
    const head = ["steps", ...ranks.map(world => `loss, ${worldName(world)}`),
        ...others.map(i => `loss difference, ${worldName(ranks[i])}`),
        ...others.map(i => `weight difference, ${worldName(ranks[i])}`)];
    at("losses-table").append(table("Loss of the last step; differences to 1 rank", head, points.map(p =>
        [String(p.steps), ...p.loss.map(loss => loss.toFixed(7)),
            ...others.map(i => Math.abs(p.loss[i] - p.loss[0]).toExponential(2)),
            ...others.map(i => p.difference[i].toExponential(2))])));
    at("losses-command").textContent = command;
}

/* ---- memory ---- */

function drawMemory() {
    const used = MEMORY.filter(([, key]) => data.runs.some(run => run.summary.memory[key] > 0));
    legend("memory-legend", used.map(([name, , colour]) => [name, colour]));
    barChart("memory-chart", "Memory of rank 0 in each run", "MB", data.runs.map(({ label, summary: { memory } }) => ({
        label, note: `+ ${shown(memory.activations_mb + memory.base_mb, 0)} MB`,
        parts: used.map(([name, key, colour]) => ({ name, colour, value: memory[key] })) })));
    const head = ["run", ...MEMORY.map(([name]) => name), "activations", "program, before the model", "peak"];
    at("memory-table").append(table("Megabytes of rank 0; peak: resident memory, of the largest rank", head,
        data.runs.map(({ label, summary: { memory, peak_rss_mb: peak } }) =>
            [label, ...MEMORY.map(([, key]) => memory[key]), memory.activations_mb, memory.base_mb, peak])));
    at("memory-command").textContent = commands(data.runs);
}

at("machine").textContent = data.machine;
drawSplit();
drawLosses();
drawMemory();
