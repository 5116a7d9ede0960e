"use strict";
/* page_robot.js: added to a report page by test_page.py. Reads the tables, presses keys, moves sliders, and sends what
 * the page shows as JSON to the frame around the page. */
const robotErrors = [];
addEventListener("error", event => robotErrors.push(event.message));
addEventListener("unhandledrejection", event => robotErrors.push(String(event.reason)));

const rowsOf = place => [...place.querySelectorAll("tbody tr")]
    .map(row => [...row.children].map(cell => cell.textContent));

/* The numbers of the axes of all charts: which axis, text, and the edges of its box: left, top, right, bottom. */
function ticksShown() {
    return [...document.querySelectorAll(".chart > svg .tick")].map(label => {
        const { x, y, width, height } = label.getBBox(), axis = label.classList.contains("x") ? "x" : "y";
        const chart = label.closest(".chart > svg").getAttribute("aria-label");
        return [`${axis} of ${chart}`, label.textContent, [x, y, x + width, y + height]];
    });
}

function press(key) {
    at("lanes-chart").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    return rowsOf(at("lanes-event"))[0];
}

function pressKeys() {
    const length = () => view.end - view.begin, whole = length();
    const first = press("ArrowRight"), right = press("ArrowRight"), down = press("ArrowDown");
    press("+");
    press("+");
    const zoomed = length(), zoomedTicks = ticksShown();
    press("0");
    return { first, right, down, whole, zoomed, again: length(), zoomedTicks };
}

/* One answer for each position of each slider, the others at positions that differ from time to time. */
function moveSliders() {
    const answers = [], inputs = [...document.querySelectorAll("#whatif input[type=range]")];
    const move = (input, value) => {
        input.value = value;
        input.dispatchEvent(new Event("input", { bubbles: true }));
        answers.push({ command: at("whatif-command").textContent, rows: rowsOf(at("whatif-answer")) });
    };
    inputs.forEach((input, i) => {
        const shared = at("whatif-shared");
        shared.checked = i % 2 === 1;
        shared.dispatchEvent(new Event("input", { bubbles: true }));
        for (let value = 0; value <= Number(input.max); value++) move(input, value);
        move(input, Math.floor(input.max / 2));
    });
    return answers;
}

async function lookAtPage() {
    await slidersStarted;
    for (const details of document.querySelectorAll("details")) details.open = true;
    const tables = Object.fromEntries(["split", "losses", "memory", "areas"].map(name => [name, rowsOf(at(`${name}-table`))]));
    const lanes = [...document.querySelectorAll("#lanes-table table")]
        .map(one => ({ caption: one.caption.textContent, rows: rowsOf(one) }));
    const areas = [...document.querySelectorAll("#lanes-chart .area")]
        .map(area => [area.textContent, [...area.points].map(({ x, y }) => [x, y])]);
    return { tables, lanes, areas, ticks: ticksShown(), keys: pressKeys(), answers: moveSliders(),
        whatif: at("whatif-body").textContent, runs: data.runs.map(({ name, label, step }) => ({ name, label, step })),
        overflow: document.documentElement.scrollWidth - innerWidth };
}

lookAtPage().catch(error => { robotErrors.push(error.stack); return {}; }).then(found =>
    parent.postMessage(JSON.stringify({ ...found, errors: robotErrors }), "*"));
