#!/usr/bin/env python3
"""Draws one training step of one rank, for several runs below each other, from the files that --trace wrote.

    python3 bench/draw_timeline.py [--without-times] OUT.svg STEP TITLE=TRACE [TITLE=TRACE ...]

All runs share one time axis. --without-times leaves its numbers out, where only the order matters. Needs only Python's
own library.
"""
import json
import sys
from html import escape

WIDTH, LEFT, ROW, GAP, TOP = 1000, 130, 26, 30, 46
COLOURS = {"forward": "#9ecae1", "backward": "#4292c6", "optimizer": "#c7b8e0", "all_reduce": "#f28e2b",
           "reduce_scatter": "#d1495b", "all_gather": "#5aae61"}
COMMUNICATION = ("all_reduce", "reduce_scatter", "all_gather")


def read_step(path, step):
    """Events of rank 0 in that step, as the host saw them: (name, row, start, end) in ms from the step's beginning."""
    with open(path) as file:
        trace = json.load(file)
    events = [e for e in trace if e["pid"] == 0 and e.get("args", {}).get("step") == step and e["ph"] in "Xi" and
              e["tid"] <= 1]
    if not events:
        sys.exit(f"draw_timeline: error: {path} has no events of rank 0 in step {step}")
    begin = min(e["ts"] for e in events)
    return [(e["name"], e["tid"], (e["ts"] - begin) / 1e3, (e["ts"] - begin + e.get("dur", 0)) / 1e3) for e in events]


def bar(x, y, width, height, colour, name):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height}" fill="{colour}" '
            f'stroke="white" stroke-width="0.5"><title>{escape(name)}</title></rect>')


def draw_run(title, events, y, scale, times):
    """Two rows: computation with its gradient-ready events as ticks, and communication."""
    out = [f'<text x="{LEFT - 12}" y="{y + ROW + 4}" text-anchor="end" font-weight="bold">{escape(title)}</text>']
    for name, row, start, end in events:
        kind = name.split()[0]
        x = LEFT + start * scale
        if kind == "gradient-ready":
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{y + 4}" stroke="#333" stroke-width="0.8"/>')
        elif kind in COLOURS:
            offset = ROW if kind in COMMUNICATION else 0
            label = f"{name}: {end - start:.1f} ms" if times else name
            out.append(bar(x, y + offset, (end - start) * scale, ROW - 4, COLOURS[kind], label))
    return out


def main():
    words = [word for word in sys.argv[1:] if word != "--without-times"]
    times = len(words) == len(sys.argv) - 1
    if len(words) < 3:
        sys.exit(__doc__)
    step = int(words[1])
    runs = [(title, read_step(path, step)) for title, path in (word.split("=", 1) for word in words[2:])]
    drawn = {name.split()[0] for _, events in runs for name, _, _, _ in events}
    longest = max(end for _, events in runs for _, _, _, end in events)
    scale = (WIDTH - LEFT - 20) / longest
    height = TOP + len(runs) * (2 * ROW + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
           f'font-size="13">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    x = LEFT
    for name, colour in ((name, colour) for name, colour in COLOURS.items() if name in drawn):
        out += [bar(x, 12, 14, 14, colour, name), f'<text x="{x + 20}" y="24">{name}</text>']
        x += 126
    out.append(f'<text x="{x}" y="24">| gradient ready</text>')
    for i, (title, events) in enumerate(runs):
        out += draw_run(title, events, TOP + i * (2 * ROW + GAP), scale, times)
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if longest / t <= 12)
    for k in range(int(longest / tick) + 1 if times else 0):
        x = LEFT + k * tick * scale
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{k * tick}</text>')
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 22}" stroke="#eee"/>')
    unit = "ms" if times else "time →"
    out.append(f'<text x="{LEFT - 12}" y="{height - 8}" text-anchor="end" fill="#555">{unit}</text></svg>')
    with open(words[0], "w") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
