#!/usr/bin/env python3
"""Draws one training step of one rank from the files that --trace wrote: several runs below each other, or one run with
its buckets' numbers and with what is hidden.

    python3 tools/bench/draw_timeline.py [--without-times] OUT.svg STEP TITLE=TRACE [TITLE=TRACE ...]

STEP is a number, or "typical": then TRACE may be a pattern ("stage1.*.json") for several runs, and of each TITLE the
step is drawn whose computing is nearest to the median of all, so that what differs in the picture is communication.
All runs share one time axis. --without-times leaves its numbers out, where only the order matters. Needs only Python's
own library.
"""
import glob
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "figures"))
from figure import COLOURS, WIDTH, Figure  # noqa: E402

LEFT, RIGHT, ROW, GAP, TOP = 126, 14, 26, 30, 48
COMMUNICATION = ("all_reduce", "reduce_scatter", "all_gather")
AT_ONCE = 2.0  # ms: a collective that begins so soon after an event was started by it


def read_steps(path):
    """By step, the events of rank 0 as the host saw them: (name, row, start, end) in ms from the step's beginning."""
    with open(path) as file:
        trace = [e for e in json.load(file) if e["pid"] == 0 and e["ph"] in "Xi" and e["tid"] <= 1]
    steps = {}
    for e in trace:
        if "step" in e.get("args", {}):
            steps.setdefault(e["args"]["step"], []).append(e)
    for step, events in steps.items():
        begin = min(e["ts"] for e in events)
        steps[step] = [(e["name"], e["tid"], (e["ts"] - begin) / 1e3, (e["ts"] - begin + e.get("dur", 0)) / 1e3)
                       for e in events]
    return steps


def read_step(path, step):
    steps = read_steps(path)
    if step not in steps:
        sys.exit(f"draw_timeline: error: {path} has no events of rank 0 in step {step}")
    return steps[step]


def kind_of(event):
    return event[0].split()[0]


def computing(events):
    """How long forward, backward and the optimizer took; None if the step has more or less than one of each."""
    times = [[e[3] - e[2] for e in events if kind_of(e) == kind] for kind in ("forward", "backward", "optimizer")]
    return [part[0] for part in times] if all(len(part) == 1 for part in times) else None


def length(events):
    return max(e[3] for e in events)


def distance(times, medians):
    return abs(sum(times) - sum(medians)) + sum(abs(t - m) for t, m in zip(times, medians))


def typical_steps(patterns):
    """For each title of `patterns`, its step whose forward, backward and optimizer, and their sum, are nearest to the
    medians of all. Not one that other programs made long, nor the first steps, which are slower, nor a run's last one.
    """
    steps = {}
    for title, pattern in patterns:
        files = [read_steps(path) for path in sorted(glob.glob(pattern))]
        steps[title] = [events for file in files for step, events in file.items()
                        if 3 <= step < max(file) and computing(events)]
        if not steps[title]:
            sys.exit(f"draw_timeline: error: {pattern} has no steps of rank 0")
    medians = [statistics.median(part) for part in zip(*(computing(e) for events in steps.values() for e in events))]
    most = {title: 1.05 * statistics.median(map(length, events)) for title, events in steps.items()}
    return [(title, min((e for e in events if length(e) <= most[title]), key=lambda e: distance(computing(e), medians)))
            for title, events in steps.items()]


def draw_bars(figure, events, y, below, scale, times):
    """Computation at y with its gradient-ready events as ticks, and communication at y + below."""
    for event in events:
        name, _, start, end = event
        x, kind = LEFT + start * scale, kind_of(event)
        label = f"{name}: {end - start:.1f} ms" if times else name
        if kind in COLOURS:
            top = y + (below if kind in COMMUNICATION else 0)
            figure.rect(x, top, (end - start) * scale, ROW - 4, kind + " edge", label)
    for x in sorted({round(LEFT + e[2] * scale, 1) for e in events if kind_of(e) == "gradient-ready"}):
        figure.line(x, y - 4, x, y + 5, "ink")


def draw_axis(figure, longest, scale, bottom, times):
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if longest / t <= 12)
    for k in range(int(longest / tick) + 1 if times else 0):
        x = LEFT + k * tick * scale
        figure.line(x, TOP - 8, x, bottom, "cell")
        figure.text(x, bottom + 16, str(k * tick), "muted", "middle", 13)
    figure.text(LEFT - 12, bottom + 16, "ms" if times else "time →", "muted", "end", 13)


def draw_runs(runs, scale, longest, times):
    """Two rows for each run."""
    titles = ", ".join(title for title, _ in runs)
    bottom = TOP + len(runs) * (2 * ROW + GAP) - 6
    figure = Figure(f"One training step of rank 0: {titles}",
                    "For each run two rows: computation with its gradient-ready events, and below it communication.",
                    bottom + 24)
    draw_axis(figure, longest, scale, bottom, times)
    for i, (title, events) in enumerate(runs):
        y = TOP + i * (2 * ROW + GAP)
        figure.text(LEFT - 12, y + ROW + 4, title, anchor="end", bold=True)
        draw_bars(figure, events, y, ROW, scale, times)
    return figure


def span(figure, x1, x2, y, words):
    """A line with ends, and words below it."""
    figure.line(x1, y, x2, y)
    for x in (x1, x2):
        figure.line(x, y - 4, x, y + 4)
    figure.text(min((x1 + x2) / 2, WIDTH - 6 - 4 * len(words)), y + 18, words, "ink", "middle", 13)


def draw_one_run(title, events, scale, longest, times):
    """Two rows, with a line from the event that started a bucket's all-reduce, and the buckets' numbers."""
    backward = next(e for e in events if kind_of(e) == "backward")
    sent = sorted((e for e in events if kind_of(e) in COMMUNICATION), key=lambda e: e[2])
    ready = [e[2] for e in events if kind_of(e) == "gradient-ready"]
    in_flight = sum(e[3] - e[2] for e in sent)
    exposed = sum(max(0, e[3] - max(e[2], backward[3])) for e in sent)
    below, y = 62, TOP + 8
    bottom = y + below + ROW + 36
    figure = Figure(f"One training step of {title}, rank 0",
                    f"Two rows: computation (forward, backward with {len(ready)} gradient-ready events, optimizer), "
                    f"and below it {len(sent)} all-reduces, one for each bucket. The first begins soon after the first "
                    "events; what is left when backward ends delays the optimizer.", bottom + 24)
    draw_axis(figure, longest, scale, bottom, times)
    figure.text(LEFT - 12, y + 16, "computation", anchor="end", size=13)
    figure.text(LEFT - 12, y + below + 16, "communication", anchor="end", size=13)
    draw_bars(figure, events, y, below, scale, times)
    free = 0
    for name, _, start, end in sent:
        x = LEFT + start * scale
        event = max((t for t in ready if t <= start), default=None)
        if event is not None and start - event < AT_ONCE and start - free > 0.1:
            figure.line(LEFT + event * scale, y + 5, x, y + below, "ink", ' stroke-dasharray="2 2"')
        free = end
        bucket = re.search(r"bucket (\d+)", name)
        if bucket:
            fits = (end - start) * scale > 8 * len(bucket[1])
            kind, row = ("on", y + below + 16) if fits else ("ink", y + below - 4)
            figure.text(x + (end - start) * scale / 2, row, bucket[1], kind, "middle", 12)
    end = LEFT + backward[3] * scale
    words = [f"{ms:.0f} ms " if times else "" for ms in (in_flight - exposed, exposed)]
    span(figure, LEFT + sent[0][2] * scale, end - 2, y + below + ROW + 8, words[0] + "hidden behind backward")
    span(figure, end + 2, LEFT + sent[-1][3] * scale, y + below + ROW + 8, words[1] + "exposed")
    return figure


def main():
    words = [word for word in sys.argv[1:] if word != "--without-times"]
    times = len(words) == len(sys.argv) - 1
    if len(words) < 3:
        sys.exit(__doc__)
    named = [word.split("=", 1) for word in words[2:]]
    runs = typical_steps(named) if words[1] == "typical" else \
        [(title, read_step(path, int(words[1]))) for title, path in named]
    longest = max(length(events) for _, events in runs)
    scale = (WIDTH - LEFT - RIGHT) / longest
    figure = draw_runs(runs, scale, longest, times) if len(runs) > 1 else draw_one_run(*runs[0], scale, longest, times)
    drawn = {kind_of(event) for _, events in runs for event in events}
    x = figure.legend(12, 24, [(kind, kind.replace("_", "-")) for kind in COLOURS if kind in drawn])
    figure.text(x, 24, "| gradient ready", size=13)
    Path(words[0]).write_text(figure.svg())


if __name__ == "__main__":
    main()
