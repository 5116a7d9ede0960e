#!/usr/bin/env python3
"""Puts the report page together from the files of its runs.

    python3 tools/report/make_report.py DIRECTORY OUT.html

DIRECTORY holds, as scripts/report.sh writes them: runs.tsv (NAME, LABEL, COMMAND), and for each run NAME.json and
NAME.trace.json; losses.RANKS.STEPS.json and losses.command; machine; and, for the sliders, simulate.wasm,
whatif.command, own_cores.json and shared_cores.json. Needs only Python's own library.
"""
import base64
import glob
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = ("charts.js", "lanes.js", "numbers.js", "sliders.js")
MEMORY = ("weights", "gathered_weights", "operands", "gradients", "whole_gradients", "optimizer", "activations")
WARM_UP = 3  # steps that are never shown: memory is used for the first time, connections are set up


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


# ---- one step of a trace ----


def typical_step(events):
    """The step whose length is the median (the longer one, if there are two), without the first ones."""
    lengths = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] == 0 and event["tid"] == 0:
            begin, end = lengths.get(event["args"]["step"], (float("inf"), 0))
            lengths[event["args"]["step"]] = (min(begin, event["ts"]), max(end, event["ts"] + event["dur"]))
    steps = sorted(lengths, key=lambda step: lengths[step][1] - lengths[step][0])
    steps = [step for step in steps if step >= min(WARM_UP, max(steps))]
    return steps[len(steps) // 2]


def arrows(trace):
    """Where each arrow begins: (rank, time of its end) -> time. Its end is the beginning of a collective."""
    begins = {(e["pid"], e["id"]): e["ts"] for e in trace if e["ph"] == "s"}
    return {(e["pid"], e["ts"]): begins[e["pid"], e["id"]] for e in trace if e["ph"] == "f"}


def read_step(path):
    """(step, its events and samples of memory as lanes.js wants them, in milliseconds from the step's beginning)."""
    trace = json.loads(read(path))
    events = [e for e in trace if e["ph"] in "Xi" and e.get("tid", 9) <= 1 and "step" in e.get("args", {})]
    if not events:
        sys.exit(f"make_report: error: {path} has no events of a step")
    step = typical_step(events)
    events = [event for event in events if event["args"]["step"] == step]
    zero, begins, out = min(event["ts"] for event in events), arrows(trace), []

    def ms(ts):
        return round((ts - zero) / 1e3, 3)

    for event in events:
        args = event["args"]
        more = {key: args[key] for key in ("bytes", "sequence", "algorithm") if key in args}
        if "queued" in args:
            more["queued"] = ms(args["queued"])
        if "waited" in args:
            more["waited"] = round(args["waited"] / 1e3, 3)
        if event["tid"] == 1 and (event["pid"], event["ts"]) in begins:
            more["from"] = ms(begins[event["pid"], event["ts"]])
        duration = round(event.get("dur", 0) / 1e3, 3)
        out.append([event["pid"], event["tid"], event["name"], ms(event["ts"]), duration, more])
    end = max(event["ts"] + event.get("dur", 0) for event in events)
    samples = []
    for rank in sorted({event["pid"] for event in events}):
        all_samples = [e for e in trace if e["ph"] == "C" and e["pid"] == rank and e["ts"] <= end]
        before = [e for e in all_samples if e["ts"] < zero][-1:]
        for e in before + [e for e in all_samples if e["ts"] >= zero]:
            samples.append([rank, max(0, ms(e["ts"])), [e["args"][kind] / 1e6 for kind in MEMORY]])
    return step, out, samples


# ---- the page's data ----


def read_runs(directory):
    runs = []
    for row in read(directory, "runs.tsv").splitlines():
        name, label, command = row.split("\t")
        step, events, samples = read_step(os.path.join(directory, f"{name}.trace.json"))
        runs.append({"name": name, "label": label, "command": command, "step": step, "events": events,
                     "memory": samples, "summary": json.loads(read(directory, f"{name}.json"))})
    return runs


def read_losses(directory):
    """Every file is the end of one run; the runs of one length are one point. Runs of 1 rank have nothing to verify."""
    found = {}
    for path in glob.glob(os.path.join(directory, "losses.*.json")):
        ranks, steps = map(int, re.fullmatch(r"losses\.(\d+)\.(\d+)\.json", os.path.basename(path)).groups())
        found[steps, ranks] = json.loads(read(path))
    ranks = sorted({world for _, world in found})
    points = []
    for steps in sorted({steps for steps, _ in found}):
        ends = [found[steps, world] for world in ranks]
        points.append({"steps": steps, "loss": [end["final_loss"] for end in ends],
                       "difference": [end["verify"]["max_abs_diff"] if end["verify"] else 0 for end in ends]})
    return {"ranks": ranks, "points": points, "command": read(directory, "losses.command").strip()}


def read_whatif(directory):
    """The simulator and what it replays, for ranks with cores of their own or not; None where it was not compiled."""
    wasm = os.path.join(directory, "simulate.wasm")
    if not os.path.exists(wasm):
        return None
    with open(wasm, "rb") as file:
        code = base64.b64encode(file.read()).decode()
    shared = json.loads(read(directory, "shared_cores.json"))
    return {"wasm": code, "command": read(directory, "whatif.command").strip(), "shared_question": shared["question"],
            **json.loads(read(directory, "own_cores.json"))}


def fill(template, parts):
    """Replaces each {{name}} by its part, once and without looking into the parts."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    directory, out = sys.argv[1:]
    data = {"machine": read(directory, "machine").strip(), "runs": read_runs(directory),
            "losses": read_losses(directory), "whatif": read_whatif(directory)}
    page = fill(read(HERE, "page.html"), {
        "style": read(HERE, "page.css"), "script": "".join(read(HERE, name) for name in SCRIPTS),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")})
    with open(out, "w", encoding="utf-8") as file:
        file.write(page)
    print(f"{out}: {len(page.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
