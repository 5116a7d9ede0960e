"""The cases of each stage, and what each line of the table is worth. Every stage has 100 points."""
from rank import main  # noqa: F401 (the judge starts it on each rank)

import checks

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
    yield case("sums", "gradients", 2, ["sum", *seen], cap=SMALL)
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
        yield case("a small cap", "gradients", 2, ["buckets"], cap=SMALL)
        yield case("a large cap", "gradients", 2, ["buckets"], cap=LARGE)
    if stage in ("overlap", "no_sync"):
        yield case("a held collective", "gradients", 2, ["starts", "goes_on"], cap=SMALL)
        yield case("a bucket for each gradient", "gradients", 2, ["at_once"], cap=TINY)
        yield case("another order on each rank", "gradients", 3, ["order"], kind="branches", cap=TINY)
    if stage == "no_sync":
        yield case("three micro-batches", "gradients", 2, ["no_sync_sum", "no_sync_cost", "mean", "traffic"],
                   micro=3, no_sync=True, cap=SMALL)
        yield case("three micro-batches of three ranks", "gradients", 3, ["no_sync_sum"], micro=3, no_sync=True,
                   shares=[3, 0, 2], kind="tied", cap=SMALL)


def cases(stage):
    if stage == "sharded_optimizer":
        seen, until = ["traffic", "under_way", "touched"], {"until": "step()", "elements": checks.trained("frozen")}
        yield case("AdamW", "sharded", 3, ["update", "memory", *seen], steps=3, **until)
        yield case("two groups, and another lr", "sharded", 2, ["groups", "under_way"], steps=4, groups=True, **until)
        yield case("one rank", "sharded", 1, ["alone"], steps=2, **until)
        yield case("fewer parameters than ranks", "sharded", 4, ["few"], steps=2, count=2, **until)
    elif stage == "fsdp":
        seen, passes = ["traffic", "under_way", "touched"], {"passes": 3}
        yield case("uneven shares", "fsdp", 3, ["sum", "start", "mean", "held", "grads_held", "whole", *seen],
                   shares=[5, 1, 0], steps=4, **passes)
        yield case("two micro-batches", "fsdp", 2, ["accumulate"], micro=2, **passes)
        yield case("frozen parameters", "fsdp", 2, ["frozen", "start"], kind="frozen", **passes)
        yield case("one rank", "fsdp", 1, ["alone"], **passes)
    else:
        yield from replicated(stage)


START = (["start"], "Every rank starts with rank 0's weights, all of them", "notes/stage1.md, \"Typical mistakes\"")
SUM = (["sum"], "Each gradient becomes the sum over the ranks' gradients, up to one common factor; of two models, too",
       "notes/ddp_in_one_page.md")
MEAN = (["mean"], "The factor makes it the mean over the global batch, also where ranks have unequal shares, or none; "
        "N ranks train what one trains", "notes/loss_and_mean.md, \"Mean of means is not the mean\"")
QUIET = (["traffic", "under_way", "touched"], "Every gradient travels once, nothing is under way any more when the "
         "optimizer begins, and no buffer is touched while it travels", "notes/stage3.md, \"Two rules\"")
ALONE = (["alone"], "All this also on one rank alone", "notes/ddp_in_one_page.md")
FROZEN = (["frozen"], "A parameter that is not trained gets no gradient, and does not travel",
          "notes/ddp_in_one_page.md")
TIED = (["tied"], "A weight that two layers share gets both its parts", "notes/tape.md")
UNUSED = (["unused"], "Parameters that the loss does not depend on, on all ranks or on one, hold nothing up",
          "notes/stage3.md, \"Unused parameters\"")
ACCUMULATE = (["accumulate"], "Micro-batches add up to their batch: no sum is summed again", "notes/tape.md")
BUCKETS = (["buckets"], "Buckets are closed at their caps", "notes/stage2.md, \"The plan, by hand\"")
STARTS = (["starts"], "The first bucket travels while backward goes on", "notes/stage3.md, \"The idea\"")
GOES_ON = (["goes_on"], "And backward goes on while it travels", "notes/stage3.md, \"Two rules\"")
AT_ONCE = (["at_once"], "Each bucket starts when it is full", "notes/stage3.md, \"Two rules\"")
ORDER = (["order"], "Buckets start in the same order on all ranks, whatever becomes ready first",
         "notes/stage3.md, \"Typical mistakes\"")
COST = (["no_sync_cost"], "K micro-batches cost the communication of one", "notes/stage4.md, \"The idea\"")
BATCH = (["no_sync_sum"], "And train what one large batch trains", "notes/stage4.md, \"Typical mistakes\"")
UPDATE = (["update"], "Every rank has the weights that one process updates", "notes/stage5.md, \"A step\"")
MEMORY = (["memory"], "Each weight has one owner, who alone keeps its optimizer state", "notes/stage5.md, \"The idea\"")
GROUPS = (["groups"], "Groups of parameters have options of their own, and a changed lr reaches them",
          "torch.optim.Optimizer, add_param_group()")
FEW = (["few"], "Also on more ranks than there are parameters", "notes/stage5.md")
HELD = (["held"], "Between steps, a rank holds its own shard of the weights only", "notes/stage5.md, \"What it saves\"")
GRADS = (["grads_held"], "And of the gradients", "notes/stage5.md, \"What it saves\"")
WHOLE = (["whole"], "Whole weights exist one layer ahead only, and are gathered again for backward",
         "notes/stage5.md, \"A step\"")

WORTH = {
    "naive": [(20, START), (15, SUM), (20, MEAN), (10, QUIET), (5, ALONE), (10, FROZEN), (10, TIED), (5, UNUSED),
              (5, ACCUMULATE)],
    "bucketed": [(10, START), (10, SUM), (20, BUCKETS), (20, MEAN), (10, QUIET), (5, ALONE), (5, FROZEN), (5, TIED),
                 (10, UNUSED), (5, ACCUMULATE)],
    "overlap": [(5, START), (10, SUM), (10, MEAN), (10, STARTS), (15, GOES_ON), (10, AT_ONCE), (10, ORDER), (10, QUIET),
                (5, ACCUMULATE), (5, FROZEN), (5, TIED), (5, UNUSED)],
    "no_sync": [(5, START), (5, SUM), (10, MEAN), (20, COST), (20, BATCH), (5, STARTS), (10, GOES_ON), (5, AT_ONCE),
                (5, ORDER), (5, QUIET), (5, FROZEN), (5, UNUSED)],
    "sharded_optimizer": [(30, UPDATE), (30, MEMORY), (10, GROUPS), (10, QUIET), (10, ALONE), (10, FEW)],
    "fsdp": [(10, START), (10, SUM), (15, MEAN), (15, HELD), (10, GRADS), (15, WHOLE), (10, QUIET), (5, ACCUMULATE),
             (5, FROZEN), (5, ALONE)],
}
POINTS = {stage: [(points, *line) for points, line in lines] for stage, lines in WORTH.items()}
