#!/usr/bin/env python3
"""Shows WORK/report.html in a browser without a screen, and compares it with the files in WORK/runs.

    test_page.py WORK WHATIF BROWSER

The page is shown with one more script, page_robot.js, which opens all tables, presses keys and moves sliders. It sends
what the page then shows to a frame around the page, because that can be narrower than any window of the browser. The
frame's document is what the browser prints.
"""
import html
import json
import os
import re
import subprocess
import sys

FRAME = """<body><iframe src="robot.html" width="{width}" height="900" style="border: 0"></iframe><script>
addEventListener("message", event => {{
    const found = document.createElement("pre");
    found.id = "robot";
    found.textContent = event.data;
    document.body.append(found);
}});
</script>"""
HERE = os.path.dirname(os.path.abspath(__file__))
MEMORY = ("weights", "gathered_weights", "operands", "gradients", "whole_gradients", "optimizer", "activations")
AREAS = ("weights", "gathered weights", "weights in 16 bits", "gradients", "whole gradients", "optimizer state",
         "activations")  # their names on the page
failures = 0


def check(holds, message):
    global failures
    if not holds:
        failures += 1
        print("FAIL: " + message)


def same(shown, expected, digits, what):
    """A cell of a table, and the number that it stands for."""
    text = "–" if expected is None else f"{expected:.{digits}f}"
    good = shown == text or (expected is not None and abs(float(shown) - expected) <= 0.51 * 10 ** -digits)
    check(good, f"{what}: the page shows {shown}, the file has {expected}")


def near(shown, expected, what):
    """The same for a number with three significant digits."""
    check(abs(float(shown) - expected) <= 0.006 * expected, f"{what}: the page shows {shown}, the file has {expected}")


def load(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


def show_page(work, browser, width):
    """What page_robot.js found."""
    with open(os.path.join(work, "report.html"), encoding="utf-8") as file:
        page = file.read()
    with open(os.path.join(HERE, "page_robot.js"), encoding="utf-8") as file:
        page = page.replace("</body>", f"<script>{file.read()}</script></body>")
    for name, text in (("robot.html", page), ("frame.html", FRAME.format(width=width))):
        with open(os.path.join(work, name), "w", encoding="utf-8") as file:
            file.write(text)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={work}/profile",
               "--window-size=1700,1000", "--virtual-time-budget=20000", "--dump-dom", f"file://{work}/frame.html"]
    dumped = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=True)
    found = re.search(r'<pre id="robot">(.*?)</pre>', dumped.stdout.decode(), re.DOTALL)
    if not found:
        sys.exit("FAIL: page_robot.js sent nothing: did a script stop?")
    seen = json.loads(html.unescape(found[1]))
    if seen["errors"]:
        sys.exit(f"FAIL: a script stopped: {seen['errors'][0]}")
    return seen


def check_alone(work):
    """The page needs nothing but itself."""
    with open(os.path.join(work, "report.html"), encoding="utf-8") as file:
        page = file.read()
    check(len(page.encode()) < 3e6, "the page has 3 MB or more")
    check(not re.search(r'<(script|link|img|iframe)[^>]*\s(src|href)=', page), "the page loads another file")
    check("default-src 'none'" in page, "the page may load from the network")
    check("{{" not in page.replace("{{(", ""), "a part of the template was not filled")


def check_summaries(runs, tables, directory):
    for row, run in zip(tables["split"], runs):
        s = load(directory, f"{run['name']}.json")
        expected = [s["step_ms"]["p50"], s["step_ms"]["p50"] - s["exposed_comm_ms"], s["exposed_comm_ms"],
                    max(0, s["comm_ms"] - s["exposed_comm_ms"]), s["comm_ms"], 100 * s["hidden_fraction"],
                    s["forward_ms"], s["backward_ms"], s["optimizer_ms"], s["collectives_per_step"],
                    s["wire_bytes_per_step"] / 1e6]
        check(row[0] == run["label"], f"{row[0]} stands where {run['label']} should")
        for shown, number in zip(row[1:], expected, strict=True):
            same(shown, number, 1, f"step time of {row[0]}")
    names = ("weights", "gathered_weights", "operands", "gradients", "whole_gradients", "optimizer", "activations",
             "base")
    for row, run in zip(tables["memory"], runs):
        s = load(directory, f"{run['name']}.json")
        expected = [s["memory"][f"{name}_mb"] for name in names] + [s["peak_rss_mb"]]
        for shown, number in zip(row[1:], expected, strict=True):
            same(shown, number, 1, f"memory of {row[0]}")
    check(len(tables["split"]) == len(tables["memory"]) == len(runs) == 7, "a run is missing in a table")


def check_losses(rows, directory):
    check([row[0] for row in rows] == ["1", "4"], "the table of losses has other runs")
    for row in rows:
        ends = [load(directory, f"losses.{ranks}.{row[0]}.json") for ranks in (1, 2, 4)]
        for shown, end in zip(row[1:4], ends):
            same(shown, end["final_loss"], 7, f"loss after {row[0]} steps")
        for shown, end in zip(row[4:6], ends[1:], strict=True):
            near(shown, abs(end["final_loss"] - ends[0]["final_loss"]), f"difference of the loss after {row[0]} steps")
        for shown, end in zip(row[6:], ends[1:], strict=True):
            near(shown, end["verify"]["max_abs_diff"], f"difference of the weights after {row[0]} steps")


def check_lanes(lanes, runs, directory):
    """Every event of the step that the page shows, by its name, duration and bytes."""
    for run, lane in zip(runs, lanes, strict=True):
        step = int(re.search(r"step (\d+)$", lane["caption"])[1])
        expected = [(str(e["pid"]), e["name"], f"{e.get('dur', 0) / 1e3:.3f}", str(e["args"].get("bytes", "–")),
                     e["args"].get("algorithm", "–"))
                    for e in load(directory, f"{run['name']}.trace.json")
                    if e["ph"] in "Xi" and e["args"].get("step") == step]
        shown = [(row[0], row[2], row[4], row[5], row[6]) for row in lane["rows"]]
        check(sorted(shown) == sorted(expected), f"{run['label']}: the events of step {step} differ from the trace's")


def read_memory(run, directory):
    """{rank: [(begin, end, MB of each kind)]} of the run's step: what each sample says holds until the next one."""
    trace, held = load(directory, f"{run['name']}.trace.json"), {}
    step = [e for e in trace if e["ph"] in "Xi" and e["args"].get("step") == run["step"] and e.get("tid", 9) <= 1]
    begin, end = min(e["ts"] for e in step), max(e["ts"] + e.get("dur", 0) for e in step)
    for rank in {e["pid"] for e in step}:
        samples = [e for e in trace if e["ph"] == "C" and e["pid"] == rank and e["ts"] <= end]
        samples = [e for e in samples if e["ts"] < begin][-1:] + [e for e in samples if e["ts"] >= begin]
        times = [max(0, ts - begin) / 1e3 for ts in [e["ts"] for e in samples] + [end]]
        held[rank] = [(time, until, [e["args"][kind] / 1e6 for kind in MEMORY])
                      for e, time, until in zip(samples, times, times[1:])]
    return held


def check_area(where, points, levels, most):
    """levels: [(begin, end, MB)]. The area's upper edge goes from left to right, its lower one back."""
    expected = [(time, mb) for begin, end, mb in levels for time in (begin, end)]
    check(len(points) == 2 * len(expected), f"{where} has {len(points)} corners, not {2 * len(expected)}")
    for (x, top), (x_below, bottom), (time, mb) in zip(points, points[::-1], expected):
        height = (bottom - top) * most / 38
        if max(abs(x - time), abs(x_below - time)) > 0.002 or abs(height - mb) > 1e-3 * most:
            return check(False, f"{where} has {height} MB at {x} and {x_below} ms, the trace {mb} MB at {time} ms")


def check_areas(areas, rows, runs, directory):
    """Each area at each sample of memory, and the table of the most and the least."""
    drawn = {title.split(", at most")[0]: points for title, points in areas}
    held = {(run["label"], rank): samples for run in runs for rank, samples in read_memory(run, directory).items()}
    most = max(sum(mb) for samples in held.values() for _, _, mb in samples)
    count = 0
    for (label, rank), samples in held.items():
        for kind, name in enumerate(AREAS):
            where, levels = f"{label}, rank {rank}: {name}", [(begin, end, mb[kind]) for begin, end, mb in samples]
            points = drawn.get(where)
            check((points is None) == all(mb == 0 for _, _, mb in levels), f"{where}: no area, or one too many")
            if points is not None:
                count += 1
                check_area(where, points, levels, most)
    check(count == len(areas) > 50, f"{len(areas)} areas are drawn, {count} were expected")
    for row in rows:
        for kind in range(len(MEMORY)):
            values = [mb[kind] for _, _, mb in held[row[0], int(row[1])]]
            same(row[2 + 2 * kind], max(values), 1, f"the most memory of {MEMORY[kind]} in {row[0]}")
            same(row[3 + 2 * kind], min(values), 1, f"the least memory of {MEMORY[kind]} in {row[0]}")
    check(len(rows) == len(held), "the table of memory lacks a rank")


def check_keys(keys):
    check(keys["first"][3] == "forward", f"the first key chooses {keys['first']}")
    check(keys["right"] != keys["first"] and keys["right"][:3] == keys["first"][:3], "→ did not go to the next event")
    check(keys["down"][2] == "communication", "↓ did not go to the lane of communication")
    check(abs(keys["zoomed"] / keys["whole"] - 0.25) < 1e-9, f"+ twice shows {keys['zoomed']} of {keys['whole']} ms")
    check(keys["again"] == keys["whole"], "0 did not show the whole step")


def is_round(numbers):
    """Multiples of 1, 2 or 5 times a power of ten, with equal steps; or powers of one base."""
    step = numbers[1] - numbers[0]
    if all(abs(b - a - step) < 1e-6 * step for a, b in zip(numbers, numbers[1:])):
        return f"{step:.9e}"[:11] in ("1.000000000", "2.000000000", "5.000000000") and all(
            abs(number / step - round(number / step)) < 1e-6 for number in numbers)
    return all(abs(b / a - numbers[1] / numbers[0]) < 1e-6 * b / a for a, b in zip(numbers, numbers[1:]))


def check_ticks(shown, width):
    """The numbers of each axis are round, and no two of them touch each other."""
    axes = {}
    for axis, text, box in shown:
        axes.setdefault(axis, []).append((float(text.split()[0]), box))
    check(len(axes) >= 8, f"at {width} pixels there are only the axes {list(axes)}")
    for axis, ticks in axes.items():
        numbers = [number for number, _ in ticks]
        check(len(numbers) >= 2 and is_round(numbers), f"at {width} pixels, {axis}: {numbers} are not round")
        check("Loss" not in axis or axis[0] == "y" or all(number % 1 == 0 for number in numbers),
              f"{axis}: {numbers} are no whole steps")
        for (one, a), (other, b) in zip(ticks, ticks[1:]):
            apart = max(b[0] - a[2], a[0] - b[2], b[1] - a[3], a[1] - b[3])
            check(apart >= 2, f"at {width} pixels, {axis}: {one} and {other} are {apart:.1f} pixels apart")


def check_sliders(answers, whatif, directory):
    """Each answer that the page shows, and what the command that it shows prints."""
    for answer in answers:
        words = answer["command"].splitlines()[-1].split()
        printed = subprocess.run([whatif, *words[1:], "--json"], cwd=directory, stdout=subprocess.PIPE, check=True)
        expected = json.loads(printed.stdout)
        rows = {row[0]: row[1] for row in answer["rows"]}
        what = " ".join(words[words.index("--link"):])
        for name, key in (("step, ms", "step_ms"), ("computing, ms", "compute_ms"), ("buckets", "buckets"),
                          ("exposed: waiting for communication or slower ranks, ms", "exposed_comm_ms"),
                          ("other buckets, MiB", "bucket_cap_mb")):
            if key != "bucket_cap_mb" or expected["stage"] > 1:  # stage 1 has no buckets
                same(rows[name], expected[key], 0 if key == "buckets" else 3, f"{name} of {what}")
        efficiency = rows["efficiency: step of one rank / this step, %"]
        same(efficiency, 100 * expected["efficiency"], 3, f"efficiency of {what}")
    check(len({answer["command"] for answer in answers}) >= 40, "the sliders asked too few different questions")
    print(f"{len(answers)} positions of the sliders compared with tools/bench/whatif")


def check_without_simulator(work, browser):
    """As the page is where clang is missing: a sentence in place of the sliders, and all else."""
    os.remove(os.path.join(work, "runs", "simulate.wasm"))
    subprocess.run([sys.executable, os.path.join(HERE, "../../tools/report/make_report.py"), os.path.join(work, "runs"),
                    os.path.join(work, "report.html")], check=True)
    found = show_page(work, browser, 1600)
    check(len(found["tables"]["memory"]) == 7, "without a simulator, the table of memory is not whole")
    check("clang and wasm-ld were missing" in found["whatif"] and found["answers"] == [], "no word on missing sliders")


def main():
    work, whatif, browser = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3]
    directory = os.path.join(work, "runs")
    check_alone(work)
    for width in (1600, 390):
        found = show_page(work, browser, width)
        check(found["overflow"] <= 0, f"at {width} pixels the page is {found['overflow']} pixels too wide")
        check_ticks(found["ticks"], width)
        check_ticks(found["keys"]["zoomedTicks"], width)
    check_summaries(found["runs"], found["tables"], directory)
    check_losses(found["tables"]["losses"], directory)
    check_lanes(found["lanes"], found["runs"], directory)
    check_areas(found["areas"], found["tables"]["areas"], found["runs"], directory)
    check_keys(found["keys"])
    check_sliders(found["answers"], whatif, directory)
    check_without_simulator(work, browser)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
