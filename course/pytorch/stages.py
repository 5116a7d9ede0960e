"""The cases of each stage, and the lines of its table, which judge.points has. Every stage has 100 points."""
from pathlib import Path

from rank import main  # noqa: F401 (the judge starts it on each rank)

import checks

STAGES = ("naive", "bucketed", "overlap", "no_sync", "sharded_optimizer", "fsdp")  # the columns of judge.points
TINY, SMALL, LARGE = 1, 800, 2**20  # caps of buckets in bytes; all gradients of the toy have some 3000


def guess(name):
    words = {"fsdp": "fsdp", "fully": "fsdp", "optim": "sharded_optimizer", "zero": "sharded_optimizer",
             "sync": "no_sync", "accum": "no_sync", "overlap": "overlap", "bucket": "bucketed", "naive": "naive",
             "ddp": "overlap"}
    return next((stage for word, stage in words.items() if word in name.lower()), None)


def case(name, run, ranks, tried, **more):
    usual = {"kind": "plain", "shares": [4] * ranks, "steps": 2, "micro": 1, "cap": LARGE,
             "elements": checks.trained(more.get("kind", "plain"))}
    return usual | {"name": name, "run": run, "ranks": ranks, "checks": tried} | more


def replicated(stage):
    """Naive to no_sync: every rank keeps everything."""
    seen = ["traffic", "under_way", "touched"]
    yield case("another start on each rank", "start", 3, ["start"], kind="frozen")
    yield case("sums", "gradients", 2, ["sum", *seen], cap=SMALL, steps=7)
    yield case("two models", "gradients", 2, ["sum"], models=2, cap=SMALL)
    yield case("one rank", "gradients", 1, ["alone", "mean"])
    yield case("uneven shares", "gradients", 3, ["mean"], shares=[5, 1, 0])
    yield case("training", "train", 3, ["mean"], shares=[5, 2, 1], steps=5)
    yield case("frozen parameters", "gradients", 2, ["frozen", "traffic"], kind="frozen", cap=SMALL)
    yield case("a tied weight", "gradients", 2, ["tied"], kind="tied", cap=TINY)
    yield case("unused parameters", "gradients", 2, ["unused"], kind="unused", cap=SMALL)
    yield case("a parameter that rank 0 does not use", "gradients", 3, ["unused"], kind="unused_on_one", cap=SMALL)
    if stage != "no_sync":
        yield case("two micro-batches, both synchronised", "gradients", 2, ["accumulate"], micro=2)
    if stage == "bucketed":
        yield case("a small cap", "gradients", 2, ["buckets"], cap=SMALL, steps=7)
        yield case("a large cap", "gradients", 2, ["buckets"], cap=LARGE, steps=5)
    if stage in ("overlap", "no_sync"):
        yield case("a held collective", "gradients", 2, ["starts", "goes_on"], cap=SMALL, steps=7)
        yield case("a bucket for each gradient", "gradients", 2, ["at_once"], cap=TINY, steps=7)
        yield case("another order on each rank", "gradients", 3, ["order"], kind="branches", cap=TINY)
    if stage == "no_sync":
        yield case("three micro-batches", "gradients", 2, ["no_sync_sum", "no_sync_cost", "mean", "traffic"],
                   micro=3, no_sync=True, cap=SMALL, steps=7)
        yield case("three micro-batches of three ranks", "gradients", 3, ["no_sync_sum"], micro=3, no_sync=True,
                   shares=[3, 0, 2], kind="tied", cap=SMALL)


def cases(stage):
    if stage == "sharded_optimizer":
        seen, until = ["traffic", "under_way", "touched"], {"until": "step()", "elements": checks.trained("frozen")}
        yield case("AdamW", "sharded", 3, ["update", "memory", *seen], steps=7, **until)
        yield case("two groups, and other options", "sharded", 2, ["groups", "under_way"], steps=4, groups=True, **until)
        yield case("one rank", "sharded", 1, ["alone"], steps=2, **until)
        yield case("fewer parameters than ranks", "sharded", 4, ["few"], steps=2, count=2, **until)
    elif stage == "fsdp":
        seen, passes = ["traffic", "under_way", "touched"], {"passes": 3}
        yield case("uneven shares", "fsdp", 3, ["sum", "start", "mean", "held", "grads_held", "whole", *seen],
                   shares=[5, 1, 0], steps=6, kind="wide", **passes)
        yield case("two micro-batches", "fsdp", 2, ["accumulate"], micro=2, **passes)
        yield case("frozen parameters", "fsdp", 2, ["frozen", "start"], kind="frozen", **passes)
        yield case("one rank", "fsdp", 1, ["alone"], **passes)
    else:
        yield from replicated(stage)


def table():
    """For each stage, its lines: points, checks, what must be true, what to read."""
    lines = [text for text in Path(__file__).with_name("judge.points").read_text().splitlines() if text[0] != "#"]
    result = {stage: [] for stage in STAGES}
    for line, read in zip(lines[::2], lines[1::2]):
        *points, checks_of_line, idea = line.split(maxsplit=len(STAGES) + 1)
        for stage, worth in zip(STAGES, points):
            if worth != "-":
                result[stage].append((int(worth), checks_of_line.split("+"), idea, read.split("read: ", 1)[1]))
    return result
