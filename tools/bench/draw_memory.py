#!/usr/bin/env python3
"""Draws what the memory of rank 0 holds through one training step, from the files that --trace wrote: an area for each
run, all to one scale. Each step is drawn equally wide, because the subject is memory, not time.

    python3 tools/bench/draw_memory.py OUT.svg STEP TITLE=TRACE [TITLE=TRACE ...]
"""
import json
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "figures"))
from figure import WIDTH, Figure  # noqa: E402

LEFT, RIGHT, HEIGHT, GAP, TOP = 150, 90, 84, 22, 40
KINDS = [("weights", "weights", "weights"), ("gathered_weights", "all_gather", "gathered weights"),
         ("gradients", "all_reduce", "gradients"), ("whole_gradients", "reduce_scatter", "whole gradients"),
         ("optimizer", "optimizer", "optimizer's state"), ("activations", "forward", "activations")]


def read_samples(path, step):
    """[(time from 0 to 1, {kind: MB})] of rank 0's step."""
    with open(path) as file:
        trace = [e for e in json.load(file) if e["pid"] == 0]
    events = [e for e in trace if e["ph"] == "X" and e["tid"] == 0 and e["args"].get("step") == step]
    if not events:
        sys.exit(f"draw_memory: error: {path} has no events of rank 0 in step {step}")
    begin, end = min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)
    samples = [((e["ts"] - begin) / (end - begin), {kind: e["args"][kind] / 1e6 for kind, _, _ in KINDS})
               for e in trace if e["ph"] == "C" and e["ts"] <= end]
    before = [memory for time, memory in samples if time < 0][-1:]
    return [(0, memory) for memory in before] + [sample for sample in samples if sample[0] >= 0]


def edge(samples, levels, y, scale):
    """The upper edge of an area: level at each sample until the next, as points; those within a pixel are one."""
    points, ends = [], [time for time, _ in samples[1:]] + [1]
    for (begin, _), end, level in zip(samples, ends, levels):
        at = f"{y + HEIGHT - level * scale:.1f}"
        if points and points[-1][1] == at:
            points.pop()
        else:
            points.append((begin, at))
        points.append((end, at))
    return [f"{LEFT + time * (WIDTH - LEFT - RIGHT):.1f},{at}" for time, at in points]


def draw_run(figure, samples, y, scale):
    below = [0.0] * len(samples)
    for kind, colour, _ in KINDS:
        above = [level + memory[kind] for level, (_, memory) in zip(below, samples)]
        if above != below:
            points = edge(samples, above, y, scale) + edge(samples, below, y, scale)[::-1]
            figure.lines += ['<polygon points="', *textwrap.wrap(" ".join(points), 118), f'" class="{colour}"/>']
        below = above


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    runs = [(title, read_samples(path, int(sys.argv[2]))) for title, path in
            (word.split("=", 1) for word in sys.argv[3:])]
    most = {title: max(sum(memory.values()) for _, memory in samples) for title, samples in runs}
    scale, y = HEIGHT / max(most.values()), TOP
    figure = Figure("What the memory of rank 0 holds through one training step: " + ", ".join(most),
                    "An area for each run, of the kinds of memory one upon the other: "
                    + "; ".join(f"{title}: at most {mb:.0f} MB" for title, mb in most.items()) + ".",
                    TOP + len(runs) * (HEIGHT + GAP))
    for title, samples in runs:
        draw_run(figure, samples, y, scale)
        for i, words in enumerate(title.split(", ")):
            figure.text(LEFT - 12, y + HEIGHT / 2 + 4 + 18 * i, words, anchor="end", bold=i == 0)
        figure.text(WIDTH - RIGHT + 8, y + HEIGHT / 2 + 4, f"{most[title]:.0f} MB")
        y += HEIGHT + GAP
    figure.legend(12, 24, [(colour, words) for _, colour, words in KINDS])
    Path(sys.argv[1]).write_text(figure.svg())


if __name__ == "__main__":
    main()
