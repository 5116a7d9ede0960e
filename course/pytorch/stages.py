"""Reads the cases of each stage, judge.cases, and what each line of its table is worth, judge.points."""
import json
from pathlib import Path

from rank import main  # noqa: F401 (the judge starts it on each rank)
import toys

STAGES = ("naive", "bucketed", "overlap", "no_sync", "sharded_optimizer", "fsdp")  # the columns of judge.points


def guess(name):
    words = {"fsdp": "fsdp", "fully": "fsdp", "optim": "sharded_optimizer", "zero": "sharded_optimizer",
             "sync": "no_sync", "accum": "no_sync", "overlap": "overlap", "bucket": "bucketed", "naive": "naive",
             "ddp": "overlap"}
    return next((stage for word, stage in words.items() if word in name.lower()), None)


def lines_of(name):
    return [text for text in Path(__file__).with_name(name).read_text().splitlines() if text[0] != "#"]


def cases(stage):
    for line in lines_of("judge.cases"):
        stages, name, what, options = line.split(" | ")
        if stage in stages.split(","):
            run, ranks, tried = what.split()
            case = {"name": name, "run": run, "ranks": int(ranks), "checks": tried.split("+"), "kind": "plain",
                    "shares": [4] * int(ranks), "steps": 2, "micro": 1, "cap": 2**20, "passes": 2} | json.loads(options)
            yield case | {"elements": sum(p.numel() for p in toys.Toy(case["kind"], 0).parameters() if p.requires_grad)}


def table():
    """For each stage, its lines: points, checks, what must be true, what to read."""
    lines, result = lines_of("judge.points"), {stage: [] for stage in STAGES}
    for line, read in zip(lines[::2], lines[1::2]):
        *points, checks_of_line, idea = line.split(maxsplit=len(STAGES) + 1)
        for stage, worth in zip(STAGES, points):
            if worth != "-":
                result[stage].append((int(worth), checks_of_line.split("+"), idea, read.split("read: ", 1)[1]))
    return result
