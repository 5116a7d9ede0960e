#!/usr/bin/env python3
"""Draws those figures of the notes that need no run. Each is computed: the ring is played, the buckets are planned.
Those that show committed measurements are in draw_charts.py.

    tools/figures/draw_figures.py             writes them to notes/
    tools/figures/draw_figures.py --check     compares them with those in notes/, and looks for what every figure there needs

The figures that show a run are drawn by tools/bench/draw_timeline.py. Needs only Python's own library.
"""
import math
import re
import sys
from pathlib import Path

from draw_charts import CHARTS
from figure import WIDTH, Figure

NOTES = Path(__file__).resolve().parents[2] / "notes"


def signed(x):
    """A number, with a minus sign as long as a plus."""
    return f"{x:g}".replace("-", "−")


# ---- one step on two ranks: ddp_in_one_page.md ----

SAMPLES = [(1, 4), (2, 5), (3, 4), (4, 6)]  # (x, t): the model is w x, a sample's loss (w x - t)^2 / 2
WEIGHT, LEARNING_RATE = 1.0, 0.1


def one_step():
    ranks = [SAMPLES[0::2], SAMPLES[1::2]]  # dealt out as common/data/sampler.c does
    errors = [[WEIGHT * x - t for x, t in samples] for samples in ranks]
    gradients = [sum(e * x for e, (x, _) in zip(errors[r], ranks[r])) for r in (0, 1)]
    total = sum(gradients)
    mean = total / len(SAMPLES)
    new = WEIGHT - LEARNING_RATE * mean
    alone = [(WEIGHT * x - t) * x for x, t in SAMPLES]
    assert sum(alone) == total  # what the figure shows
    figure = Figure("One training step on two ranks",
                    f"Both ranks begin with the weight {WEIGHT:g}. Each computes the gradient of its two samples: "
                    f"{gradients[0]:g} and {gradients[1]:g}. The all-reduce gives {total:g} to both, times 1/4 is "
                    f"{mean:g}, so both update their weight to {new:g}. One process with all four samples does the "
                    "same.", 318)
    left, width, gap, rows, height = 66, 86, 16, (78, 178), 74
    columns = [("weights", "weights", ""), ("samples", "cell", "(x, t)"), ("forward", "forward", "e = w x − t"),
               ("backward", "backward", "dw = Σ e x"), ("all-reduce", "all_reduce", "sum of dw"),
               ("scale", "optimizer", "dw × 1/B"), ("optimizer", "optimizer", f"w − {LEARNING_RATE:g} dw"),
               ("weights", "weights", "")]

    def x_of(column):
        return left + column * (width + gap)
    for i, (name, _, formula) in enumerate(columns):
        figure.text(x_of(i) + width / 2, 26, name, anchor="middle", bold=True)
        if formula:
            figure.text(x_of(i) + width / 2, 48, formula, "muted", "middle", 13)
    for r, y in enumerate(rows):
        figure.text(10, y + height / 2 + 5, f"rank {r}", bold=True)
        products = [signed(e * x) for e, (x, _) in zip(errors[r], ranks[r])]
        words = [[f"w = {WEIGHT:g}"], [f"({x}, {t})" for x, t in ranks[r]],
                 [f"e = {signed(e)}" for e in errors[r]],
                 [products[0] + " " + products[1].replace("−", "− "), f"= {signed(gradients[r])}"], None,
                 [f"{signed(total)} / {len(SAMPLES)}", f"= {signed(mean)}"],
                 [f"{WEIGHT:g} + {-LEARNING_RATE * mean:g}"], [f"w = {new:g}"]]
        for i, (_, kind, _) in enumerate(columns):
            if words[i]:
                figure.box(x_of(i), y, width, height, kind, *words[i], size=14)
            if i > 0:
                figure.arrow(x_of(i) - gap + 1, y + height / 2, x_of(i) - 1, y + height / 2)
    first, second = gradients
    figure.box(x_of(4), rows[0], width, rows[1] + height - rows[0], "all_reduce",
               f"{signed(first)} {signed(second).replace('−', '− ')}", f"= {signed(total)}", size=14)
    figure.text(x_of(4) + width / 2, 274, "the only communication", "muted", "middle", 13)
    sums = signed(alone[0]) + "".join(f" − {-g:g}" for g in alone[1:])
    figure.text(left, 302, f"One process with all {len(SAMPLES)} samples: dw = {sums} = {signed(total)}, "
                f"the mean is {signed(mean)}, and w = {new:g}: the same weight.")
    return figure


# ---- a bucket's memory: stage2.md ----

LAYERS = [("fc1", 784, 512), ("fc2", 512, 512), ("fc3", 512, 10)]
CAPS, SLICE = (1 << 20, 25 << 20), 64  # bytes: of the first bucket and of the others; a slice is a multiple of SLICE


def plan_buckets(sizes):
    """The rule of stage2_bucketed/buckets.c: a bucket closes after the gradient that fills it."""
    buckets, filled = [[]], 0
    for name, size in sizes:
        if filled >= CAPS[len(buckets) > 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append((name, size))
        filled += size
    return buckets


def bucket_memory():
    registered = [(f"{name}.{part}", shape, 4 * math.prod(shape)) for name, inputs, outputs in LAYERS
                  for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))]
    buckets = plan_buckets([(name, size) for name, _, size in reversed(registered)])
    table = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) \| \d+ \|", (NOTES / "stage2.md").read_text(), re.M)
    assert table == [(name, str(size), str(b)) for b, bucket in enumerate(buckets) for name, size in bucket], \
        "the plan is not that of the table in notes/stage2.md"
    figure = Figure("Gradients as slices of two flat buffers",
                    "Six parameters of the MLP in order of registration, and below them the memory of two buckets. The "
                    "gradient of each parameter is a slice of a bucket, and the slices are in reverse order. Bucket 0 "
                    "holds fc3.bias, a gap, fc3.weight, fc2.bias and fc2.weight; it closes after fc2.weight, which "
                    "passes the cap of 1 MiB. Bucket 1 holds fc1.bias and fc1.weight.", 390)
    figure.text(20, 26, "Parameters, in order of registration (forward uses them in this order)", bold=True)
    figure.arrow(586, 21, 860, 21, "muted")
    owner = {}
    for i, (name, shape, _) in enumerate(registered):
        figure.box(20 + i * 141, 40, 131, 48, "weights", name, " × ".join(map(str, shape)), size=14)
        owner[name] = 20 + i * 141 + 131 / 2
    figure.text(20, 162, "Each gradient is a pointer to a slice.", "muted", size=13)
    x, y, height = 20, 220, 48
    for b, bucket in enumerate(buckets):
        begin, offset = x, 0
        for name, size in bucket:
            width = 20 + 8 * math.log2(size)
            figure.arrow(owner[name], 88, x + width / 2, y - 2, "muted")
            figure.box(x, y, width, height, "all_reduce", name, size=13 if width > 80 else 12)
            figure.outline(x, y, width, height, "paper")
            figure.text(x, y + height + 18, f"{offset:,}" if offset else "byte 0", "muted", size=12)
            if offset < CAPS[b > 0] <= offset + size:
                cap = x + width * (CAPS[b > 0] - offset) / size
                figure.line(cap, y - 8, cap, y + height + 30, "ink", ' stroke-dasharray="4 3"')
                figure.text(cap - 6, y + height + 36, "cap: 1 MiB", anchor="end", size=13)
            x += width
            offset += size
            if offset % SLICE:
                figure.box(x, y, 24, height, "cell", "gap", size=11)
                x += 24
                offset += -offset % SLICE
        figure.line(begin, y + height + 46, x, y + height + 46, "ink")
        figure.text((begin + x) / 2, y + height + 66, f"bucket {b}: {offset:,} bytes", anchor="middle", bold=True)
        x += 24
    figure.text(20, 370, "Backward completes the layers in this order", bold=True)
    figure.arrow(430, 365, 860, 365, "muted")
    return figure


# ---- a ring with 4 ranks: allreduce.md ----

RANKS = 4


def play_ring():
    """Yields after each step what each rank has in each chunk, as the list of ranks whose parts are in it, and which
    chunk arrived. The rules are those of common/comm/allreduce_ring.c."""
    buffers = [[[r] for _ in range(RANKS)] for r in range(RANKS)]
    chunks, travelling = list(range(RANKS)), [[r] for r in range(RANKS)]  # what rank r sends next
    yield [list(b) for b in buffers], None
    for step in range(2 * (RANKS - 1)):
        chunks = [chunks[r - 1] for r in range(RANKS)]  # from the rank before; -1 is the last one
        received = [travelling[r - 1] for r in range(RANKS)]
        reduces = step < RANKS - 1
        travelling = [received[r] + [r] if reduces else received[r] for r in range(RANKS)]
        shown = [list(b) for b in buffers]
        for r, chunk in enumerate(chunks):
            shown[r][chunk] = travelling[r]  # a partial sum is in scratch memory, and soon replaced by the next one
            if step >= RANKS - 2:
                buffers[r][chunk] = travelling[r]
        yield shown, chunks


def ring():
    states = list(play_ring())
    assert all(sorted(chunk) == list(range(RANKS)) for buffer in states[-1][0] for chunk in buffer)
    figure = Figure("A ring all-reduce with 4 ranks, step by step",
                    "Seven states of 4 ranks, each with 4 chunks. In steps 0 to 2, the reduce-scatter, each rank "
                    "receives a partial sum from the rank before it and adds its own part. After step 2, rank r holds "
                    "the finished sum of chunk r + 1. In steps 3 to 5, the all-gather, the finished sums go round, "
                    "until each rank has all of them.", 626)
    cell, height, gap, top = 78, 22, 20, 66
    for i, (state, arriving) in enumerate(states):
        half, row = (0, i) if i < RANKS else (1, i - RANKS + 1)
        left, y = 48 + half * 440, top + row * 140
        reduces = i < RANKS
        if i == 0:
            title = "before: each rank has its own parts"
        else:
            title = f"after step {i - 1}: " + ("rank r has received chunk " + ("r − %d, and added" % i) if reduces else
                                               "a finished sum has arrived")
        figure.text(left, y, title, bold=True, size=13)
        for chunk in range(RANKS):
            figure.text(left - 28, y + 26 + chunk * (height + 2), str(chunk), "muted", "middle", 12)
        for r in range(RANKS):
            x = left + r * (cell + gap)
            for chunk in range(RANKS):
                cy = y + 10 + chunk * (height + 2)
                arrived = arriving is not None and arriving[r] == chunk
                finished = len(state[r][chunk]) == RANKS
                kind = ("reduce_scatter" if reduces else "all_gather") if arrived else "cell"
                figure.box(x, cy, cell, height, kind, "+".join(map(str, state[r][chunk])), size=12)
                if finished:
                    figure.outline(x, cy, cell, height, "ink")
                if arrived:
                    figure.arrow(x - gap + 1, cy + height / 2, x - 1, cy + height / 2)
                    if r == 0:  # it comes from the last rank
                        edge = left + RANKS * (cell + gap) - gap
                        middle = cy + height / 2
                        figure.line(edge, middle, edge + gap / 2, middle, "ink", ' stroke-width="1.5"')
    for half, title in enumerate(("reduce-scatter", "all-gather")):
        left = 48 + half * 440
        figure.text(left, 24, title, bold=True, size=16)
        for r in range(RANKS):
            figure.text(left + r * (cell + gap) + cell / 2, 46, f"rank {r}", "muted", "middle", 13)
    for x in (48, left):
        figure.text(x - 40, 46, "chunk", "muted", size=12)
    for i, (kind, words) in enumerate((("cell", "the rank's own part, or a sum that came before"),
                                       ("reduce_scatter", "a partial sum came, and the own part was added"),
                                       ("all_gather", "a finished sum came"),
                                       ("ink-line", "finished: the parts of all ranks"))):
        figure.legend(left, 88 + 22 * i, [(kind, words)])
    figure.text(left, 88 + 22 * 4, "3+0+1: whose parts, in the order of addition")
    return figure


# ---- an event before the last contribution: tape.md ----

TIED_WEIGHT, INPUTS = 3, (2, 4)
RACES = [  # when the event is raised, the all-reduce reads, it writes, and the second contribution is added
    ("The second contribution is added before the sum is written", 1, 2, 4, 3),
    ("The second contribution is added after the sum was written", 1, 2, 3, 4),
    ("The second contribution is added before the all-reduce reads", 1, 3, 4, 2),
    ("The event comes after the second contribution, as it must", 2, 3, 4, 2),
]


def play_race(read, write, second):
    """The values of dw on both ranks after each moment, and what the all-reduce adds."""
    dw, summands = [0] * len(INPUTS), []
    moments = [list(dw)]
    for now in range(1, 5):
        if now == read:
            summands = list(dw)
        if now == write:
            dw = [sum(summands)] * len(INPUTS)
        if now in (1, second):
            dw = [value + TIED_WEIGHT * x for value, x in zip(dw, INPUTS)]
        moments.append(list(dw))
    return moments, summands


def race():
    right = sum(2 * TIED_WEIGHT * x for x in INPUTS)
    figure = Figure("What an event before the last contribution does",
                    f"Four time lines of two ranks with a tied weight; the right sum is {right}. In three of them the "
                    "event is raised after the first contribution. Then the result is 18 on both ranks, or 24 and 30, "
                    "or 36 by luck. In the last one the event is raised after the second contribution: 36.", 604)
    left, slot, panel = 120, 130, 144

    def x_of(moment):
        return left + slot * moment
    for i, (title, event, read, write, second) in enumerate(RACES):
        y = 28 + i * panel
        moments, summands = play_race(read, write, second)
        is_right, is_equal = moments[-1] == [right] * 2, moments[-1][0] == moments[-1][1]
        verdict = ("right", "right, by luck" if event < second else "right, always") if is_right else \
                  ("wrong", "wrong, and equal:" if is_equal else "wrong, and different:")
        note = "" if is_right else "only --verify finds it" if is_equal else "found at the end"
        figure.text(12, y, f"{i + 1}. {title}", bold=True)
        for k, name in enumerate(("backward", "all-reduce")):
            figure.text(left - 12, y + 28 + 28 * k, name, anchor="end")
            figure.line(left, y + 23 + 28 * k, x_of(4), y + 23 + 28 * k, "cell")
        figure.box(x_of(0), y + 12, slot - 4, 22, "backward", "from y = w h")
        figure.box(x_of(second - 1), y + 12, slot - 4, 22, "backward", "from h = w x")
        figure.box(x_of(read), y + 40, slot * (write - read) - 4, 22, "all_reduce",
                   f"{' + '.join(map(str, summands))} = {sum(summands)}")
        figure.line(x_of(event) - 2, y + 6, x_of(event) - 2, y + 52, "ink", ' stroke-width="2"')
        figure.line(x_of(event), y + 51, x_of(read), y + 51, "ink", ' stroke-dasharray="4 3"')
        figure.text(x_of(event) - 8, y + 56, "event", anchor="end", size=13)
        for r in range(len(INPUTS)):
            figure.text(left - 12, y + 82 + 19 * r, f"dw on rank {r}", "muted", "end", 13)
            for now, values in enumerate(moments):
                last = now == len(moments) - 1
                x, anchor = (x_of(now) - 4, "end") if now else (left, "start")
                figure.text(x, y + 82 + 19 * r, str(values[r]), verdict[0] if last else "ink", anchor, bold=last)
        figure.text(x_of(4) + 24, y + 82, verdict[1], verdict[0], bold=True)
        figure.text(x_of(4) + 24, y + 101, note, verdict[0])
    return figure


# ---- what each rank holds: stage5.md ----

MEMORY = [("weights", "weights, 4 bytes each", 4), ("all_reduce", "gradients, 4 bytes", 4),
          ("optimizer", "AdamW's state, 8 bytes", 8)]
LEVELS = [("stage 4", 0), ("--zero 1", 1), ("--zero 2", 2), ("--zero 3", 3)]  # how many, from the last, are divided


def sharded_memory():
    figure = Figure("What each of 4 ranks holds all the time: stage 4, and stage 5 at levels 1, 2 and 3",
                    "In stage 4 each rank holds 16 bytes per weight: 4 of weights, 4 of gradients, 8 of AdamW's state. "
                    "Level 1 divides the state by 4, level 2 also the gradients, level 3 also the weights: 10, 7 and 4 "
                    "bytes per weight.", 444)
    left, column, unit = 88, 160, 17
    x = figure.legend(left, 26, [(kind, words) for kind, words, _ in MEMORY])
    figure.outline(x, 14, 14, 14, dashed=True)
    figure.text(x + 20, 26, "on other ranks")
    for r in range(RANKS):
        figure.text(left + r * column, 54, f"rank {r}", "muted")
    figure.text(868, 54, "bytes per weight", "muted", "end")
    for i, (name, divided) in enumerate(LEVELS):
        y = 62 + i * 94
        figure.line(12, y, 868, y, "cell")
        figure.text(left - 12, y + 50, name, anchor="end", bold=True)
        held = [size / RANKS if k >= len(MEMORY) - divided else size for k, (_, _, size) in enumerate(MEMORY)]
        for r in range(RANKS):
            for k, (kind, _, size) in enumerate(MEMORY):
                x, top = left + r * column, y + 12 + 25 * k
                if held[k] == size:
                    figure.rect(x, top, size * unit, 19, kind)
                else:
                    figure.outline(x, top, size * unit, 19, dashed=True)
                    figure.rect(x + r * held[k] * unit, top, held[k] * unit, 19, kind)
        figure.text(868, y + 50, " + ".join(f"{h:g}" for h in held) + f" = {sum(held):g}", anchor="end")
    return figure


def between_hosts(hosts, ranks):
    """What a host sends to others in an all-reduce, in units of the buffer: by algorithm. Every rank owns a part."""
    total, mine = hosts * ranks, range(ranks)
    others = range(ranks, total)
    ordered = sum(2 / total for _ in mine for _ in others) # a rank's values to each owner, and its own sum to each rank
    ring = 2 * (total - 1) / total # of its ranks, one sends to another host
    return [("hierarchical", ranks * 2 * (hosts - 1) / (hosts * ranks)), ("ring", ring), ("ordered", ordered)]


def two_levels():
    hosts, ranks, rows = 2, 2, between_hosts(2, 2)
    figure = Figure("What the link between two hosts of two ranks carries, by algorithm",
                    "In an all-reduce of n bytes each host sends " +
                    ", ".join(f"{sent:g} n with {name}" for name, sent in rows) + ".", 324)
    for i, (name, sent) in enumerate(rows):
        y = 12 + i * 104
        figure.text(12, y + 48, name, bold=True)
        for host in range(hosts):
            x = 150 + host * 520
            figure.outline(x, y, 190, 84)
            figure.text(x + 95, y + 18, f"host {host}", "muted", "middle")
            for rank in range(ranks):
                figure.rect(x + 20 + rank * 84, y + 30, 66, 38, "cell")
                figure.text(x + 53 + rank * 84, y + 54, f"rank {host * ranks + rank}", anchor="middle")
        for way in range(2): # the link carries as much in each direction
            figure.rect(340, y + 48 + (4 if way else -4 - 12 * sent), 330, 12 * sent,
                        "all_reduce")
        figure.text(505, y + 14, f"{sent:g} n in each direction".removeprefix("1 "), anchor="middle")
    return figure


FIGURES = {"one_step": one_step, "bucket_memory": bucket_memory, "ring": ring, "event_too_early": race,
           "sharded_memory": sharded_memory, "two_levels": two_levels, **CHARTS}


def check():
    """What is wrong with the figures in notes/, one line each."""
    texts = "".join(path.read_text() for path in [*NOTES.glob("*.md"), NOTES.parent / "README.md"])
    for name, draw in FIGURES.items():
        path = NOTES / f"{name}.svg"
        if not path.exists() or path.read_text() != draw().svg():
            yield f"notes/{name}.svg is not what tools/figures/draw_figures.py draws: run it, and look at the figure"
    for path in sorted(NOTES.glob("*.svg")):
        for part in ("<title>", "<desc>", "<text ", "prefers-color-scheme: dark"):
            if part not in path.read_text():
                yield f"notes/{path.name} has no {part}: draw it with tools/figures/figure.py"
        if not re.search(rf"!\[[^]]+\]\((notes/)?{re.escape(path.name)}\)", texts):
            yield f"notes/{path.name} is shown by no note, or without a text for those who do not see it"


def main():
    if sys.argv[1:] == ["--check"]:
        failures = list(check())
        print("\n".join(failures) or f"{len(FIGURES)} figures are as drawn, and all in notes/ have what they need")
        sys.exit(1 if failures else 0)
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    for name, draw in FIGURES.items():
        (NOTES / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
