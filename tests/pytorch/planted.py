#!/usr/bin/env python3
"""Wrong classes: each changes one thing of a right one, and has the check that must name it.

python planted.py [NAME...] judges them and the right classes: a wrong one must fail its check, a right one none.
"""
import os
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
import torch.distributed as dist

import right
from right import FSDP, Bucketed, Naive, NoSync, Overlap, ShardedOptimizer

PLANTED = {}  # name: file, stage, check
STAGE = {Naive: "naive", Bucketed: "bucketed", Overlap: "overlap", NoSync: "no_sync",
         ShardedOptimizer: "sharded_optimizer", FSDP: "fsdp"}
RIGHT = {cls.__name__: stage for cls, stage in STAGE.items()} | {
    "ReduceAndBroadcast": "naive", "WaitAll": "overlap", "AsksAfterBackward": "overlap", "Thread": "overlap",
    "Pool": "overlap", "TorchDDP": "no_sync", "TorchFSDP": "fsdp"}


def planter(names, planted):
    """A function that defines wrong classes among the names of a file."""
    def plant(name, base, check, stage=None, **methods):
        names[name] = type(name, (base,), methods)
        planted[name] = names["__file__"], stage or STAGE[base], check

    return plant


plant = planter(globals(), PLANTED)


def broadcast(choose, root=0):
    def start(self):
        for parameter in filter(choose, self.module.parameters()):
            dist.broadcast(parameter.data, src=root)

    return start


plant("NoBroadcast", Naive, "start", start=broadcast(lambda p: False))
plant("BroadcastFromRankOne", Naive, "start", start=broadcast(lambda p: True, 1))
plant("FrozenNotBroadcast", Naive, "start", start=broadcast(lambda p: p.requires_grad))


def each(choose, average):
    def finish(self):
        parameters = list(self.module.parameters())
        for number, parameter in enumerate(parameters):
            if choose(parameter, number, len(parameters)):
                average(self, parameter)

    return finish


def average_gradient(self, parameter):
    self.average(parameter.grad)


def divided_by(divisor):
    def average(self, gradient):
        dist.all_reduce(gradient)
        gradient /= divisor(self)

    return average


plant("SumNotMean", Naive, "mean", average=divided_by(lambda self: 1))
plant("DividedTwice", Naive, "mean", average=divided_by(lambda self: self.world**2))
plant("DividedByTwo", Naive, "mean", average=divided_by(lambda self: 2))
plant("LastForgotten", Naive, "sum", finish_gradient_synchronization=each(lambda p, n, k: n < k - 1, average_gradient))
plant("ReducesWeights", Naive, "sum",
      finish_gradient_synchronization=each(lambda p, n, k: True, lambda self, p: self.average(p.data)))
plant("SkipsUnused", Naive, "unused",
      finish_gradient_synchronization=each(lambda p, n, k: p.grad is not None, average_gradient))


def frozen_gets_zeros(self):
    Naive.finish_gradient_synchronization(self)
    for parameter in self.module.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def reduced_twice(self, gradient):
    Naive.average(self, gradient)
    Naive.average(self, gradient)


def never_waits(self, gradient):
    dist.all_reduce(gradient.div_(self.world), async_op=True)


def divides_under_way(self, gradient):
    work = dist.all_reduce(gradient, async_op=True)
    gradient /= self.world
    work.wait()


def writes_everywhere(self):  # also to the judge, which must not wait for what such a message promises
    for file in range(3, 64):
        with suppress(OSError):
            os.write(file, b"100 of 100 points")
    Naive.finish_gradient_synchronization(self)


def another_divisor_for_small(self, gradient):
    dist.all_reduce(gradient)
    gradient /= self.world if gradient.numel() > 10 else 1


plant("FrozenGetsZeros", Naive, "frozen", finish_gradient_synchronization=frozen_gets_zeros)
plant("ReducedTwice", Naive, "traffic", average=reduced_twice)
plant("NeverWaits", Naive, "under_way", average=never_waits)
plant("DividesUnderWay", Naive, "touched", average=divides_under_way)
plant("EndsTheProcess", Naive, "sum", finish_gradient_synchronization=lambda self: os._exit(0))
plant("WritesEverywhere", Naive, "sum", finish_gradient_synchronization=writes_everywhere)
plant("SmallNotDivided", Naive, "sum", average=another_divisor_for_small)


def cap_of(cap):
    return lambda self, module, bucket_size_mb=1: Bucketed.__init__(self, module, cap)


def last_bucket_forgotten(self, module, bucket_size_mb=1):
    Bucketed.__init__(self, module, bucket_size_mb)
    self.buckets = self.buckets[:-1] or self.buckets


def buckets_of_the_class(self, module, bucket_size_mb=1):  # so the second model takes those of the first away
    Bucketed.__init__(self, module, bucket_size_mb)
    type(self).buckets = self.__dict__.pop("buckets")


def another_cap_after_three_steps(self):
    self.steps = getattr(self, "steps", 0) + 1
    self.buckets = right.grouped(self.module.parameters(), 0) if self.steps > 3 else self.buckets
    Bucketed.finish_gradient_synchronization(self)


plant("AnotherCapAfterThreeSteps", Bucketed, "buckets", finish_gradient_synchronization=another_cap_after_three_steps)
plant("OneBucketForAll", Bucketed, "buckets", __init__=cap_of(1000))
plant("OneBucketEach", Bucketed, "buckets", __init__=cap_of(0))
plant("LastBucketForgotten", Bucketed, "sum", __init__=last_bucket_forgotten)
plant("NeverCopiedBack", Bucketed, "sum", give=lambda self, values, bucket: None)
plant("BucketsOfTheClass", Bucketed, "sum", __init__=buckets_of_the_class)


def then(act):
    def launch(self):
        Overlap.launch(self)
        act(self.under_way[-1][0])

    return launch


def polls(work):
    while not work.is_completed():
        pass


def six_at_a_time(self, parameter):
    self.missing[self.place[parameter]].discard(parameter)
    first = len(self.under_way)
    if first + 6 <= len(self.buckets) and not any(self.missing[first : first + 6]):
        for _ in range(6):
            self.launch()


def one_bucket_late(self, parameter):
    self.missing[self.place[parameter]].discard(parameter)
    while len(self.under_way) < len(self.buckets) - 1 and not any(self.missing[len(self.under_way) :][:2]):
        self.launch()


def as_ready(self, parameter):
    index = self.place[parameter]
    self.missing[index].discard(parameter)
    if not self.missing[index]:
        self.buckets[len(self.under_way)], self.buckets[index] = self.buckets[index], self.buckets[len(self.under_way)]
        self.place = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.missing[index] = self.missing[len(self.under_way)]
        self.launch()


def at_the_first(self, parameter):  # as if one gradient were the whole bucket
    self.missing[self.place[parameter]].clear()
    Overlap.ready(self, parameter)


def finish_all_but_last(self):
    for bucket, (work, values) in list(zip(self.buckets, self.under_way))[:-1]:
        work.wait()
        self.give(values, bucket)
    self.begin()


def joins_in_the_hook(self):
    values = self.packed(self.buckets[len(self.under_way)])
    thread = threading.Thread(target=dist.all_reduce, args=(values,))
    thread.start()
    thread.join()
    thread.wait = thread.join
    self.under_way.append((thread, values))


def waits_for_a_future_of_cpp(self):
    values = self.packed(self.buckets[len(self.under_way)])
    future = torch.futures.Future()
    threading.Thread(target=lambda: future.set_result(dist.all_reduce(values))).start()
    future.wait()
    self.under_way.append((future, values))


def waits_after_three_steps(self):
    Overlap.launch(self)
    self.launches = getattr(self, "launches", 0) + 1
    if self.launches > 3 * len(self.buckets):
        self.under_way[-1][0].wait()


def only_callbacks(self):
    for bucket, (work, values) in zip(self.buckets, self.under_way):
        work.get_future().then(lambda _, b=bucket, v=values: self.give(v, b))
    self.begin()


plant("AllAfterBackward", Bucketed, "starts", "overlap")
plant("WaitsInTheHook", Overlap, "goes_on", launch=then(lambda work: work.wait()))
plant("WaitsForTheFuture", Overlap, "goes_on", launch=then(lambda work: work.get_future().wait()))
plant("PollsInTheHook", Overlap, "goes_on", launch=then(polls))
plant("JoinsInTheHook", Overlap, "goes_on", launch=joins_in_the_hook)
plant("WaitsForAFutureOfCpp", Overlap, "goes_on", launch=waits_for_a_future_of_cpp)
plant("WaitsAfterThreeSteps", Overlap, "goes_on", launch=waits_after_three_steps)
plant("SixAtATime", Overlap, "at_once", ready=six_at_a_time)
plant("OneBucketLate", Overlap, "at_once", ready=one_bucket_late)
plant("LaunchedAsReady", Overlap, "order", ready=as_ready)
plant("LaunchedTooEarly", Overlap, "sum", ready=at_the_first)
plant("LastWaitForgotten", Overlap, "under_way", finish_gradient_synchronization=finish_all_but_last)
plant("OnlyCallbacks", Overlap, "under_way", finish_gradient_synchronization=only_callbacks)


def never_synchronizes_again(self):
    self.synchronizes = False
    return nullcontext()


def last_micro_batch_only(self, parameter):
    if self.synchronizes:
        Overlap.ready(self, parameter)
    else:
        parameter.grad = None


plant("NoSyncSynchronizes", NoSync, "no_sync_cost", ready=Overlap.ready)
plant("NoSyncNeverEnds", NoSync, "no_sync_sum", no_sync=never_synchronizes_again,
      finish_gradient_synchronization=lambda self: self.synchronizes and Overlap.finish_gradient_synchronization(self))
def divides_by_micro_batches_too(self):
    Overlap.finish_gradient_synchronization(self)
    for parameter in self.module.parameters() if getattr(self, "micro", 0) else []:
        parameter.grad /= 3


def counts(self):
    self.micro = 2
    return NoSync.no_sync(self)


plant("DividesByMicroBatchesToo", NoSync, "mean", no_sync=counts,
      finish_gradient_synchronization=divides_by_micro_batches_too)
plant("LastMicroBatchOnly", NoSync, "no_sync_sum", ready=last_micro_batch_only)


def main(names):
    sys.path.append(str(Path(__file__).resolve().parents[2] / "course/pytorch"))
    import planted_sharded
    from judge import judge  # a rank, which loads this file, has no need of it

    wrong = judged = 0
    for name, stage in RIGHT.items():
        if not names or name in names:
            result = judge(right.__file__, name, stage)
            wrong += result["points"] != 100
            told = f"{result['points']} points of {stage}, {result['seconds']} s {result['failed'] or ''}"
            print(f"{name}: {told}", flush=True)
    for name, (file, stage, check) in (PLANTED | planted_sharded.PLANTED).items():
        if not names or name in names:
            failed = judge(file, name, stage, {check})["failed"]
            judged += 1
            crashes = any(word in failed.get(check, "") for word in ("Error: ", " hangs, ", "not over"))  # no proof
            found = check in failed and not crashes
            wrong += not found
            verdict = "found" if found else "NOT FOUND"
            print(f"{name}: {check} {verdict}: {failed.get(check, failed)}", flush=True)
    print(f"{judged} wrong classes; {wrong} classes judged wrongly")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
