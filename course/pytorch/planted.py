#!/usr/bin/env python3
"""Wrong classes, each with one mistake, the stage that it is judged as, and the check that must name it.

python planted.py [NAME...] judges them, and the right classes: each wrong one must fail its check, each right one none.
"""
import sys

import torch
import torch.distributed as dist
from torch import nn

import right

PLANTED = {}  # name: stage, check


def planted(stage, check):
    def enter(cls):
        PLANTED[cls.__name__] = stage, check
        return cls

    return enter


@planted("naive", "start")
class NoBroadcast(right.Naive):
    def start(self):
        pass


@planted("naive", "start")
class BroadcastFromTheLast(right.Naive):
    def start(self):
        for parameter in self.module.parameters():
            dist.broadcast(parameter.data, src=self.world - 1)


@planted("naive", "start")
class FrozenNotBroadcast(right.Naive):
    def start(self):
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                dist.broadcast(parameter.data, src=0)


@planted("naive", "mean")
class SumNotMean(right.Naive):
    def average(self, gradient):
        dist.all_reduce(gradient)


@planted("naive", "mean")
class DividedTwice(right.Naive):
    def average(self, gradient):
        super().average(gradient.div_(self.world))


@planted("naive", "mean")
class DividedByTwo(right.Naive):
    def average(self, gradient):
        dist.all_reduce(gradient)
        gradient /= 2


@planted("naive", "sum")
class LastParameterForgotten(right.Naive):
    def finish_gradient_synchronization(self):
        for parameter in list(self.module.parameters())[:-1]:
            self.average(parameter.grad)


@planted("naive", "sum")
class ReducesTheParameter(right.Naive):
    def finish_gradient_synchronization(self):
        for parameter in self.module.parameters():
            self.average(parameter.data)


@planted("naive", "traffic")
class ReducedTwice(right.Naive):
    def average(self, gradient):
        super().average(gradient)
        super().average(gradient)


@planted("naive", "unused")
class SkipsWhatIsUnused(right.Naive):
    def finish_gradient_synchronization(self):
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                self.average(parameter.grad)


@planted("naive", "frozen")
class FrozenGetsZeros(right.Naive):
    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@planted("naive", "under_way")
class NeverWaits(right.Naive):
    def average(self, gradient):
        gradient /= self.world
        dist.all_reduce(gradient, async_op=True)


@planted("naive", "touched")
class DividesUnderWay(right.Naive):
    def average(self, gradient):
        work = dist.all_reduce(gradient, async_op=True)
        gradient /= self.world
        work.wait()


@planted("bucketed", "buckets")
class OneBucketForAll(right.Bucketed):
    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module, 1000)


@planted("bucketed", "buckets")
class OneBucketEach(right.Bucketed):
    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module, 0)


@planted("bucketed", "sum")
class LastBucketForgotten(right.Bucketed):
    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module, bucket_size_mb)
        self.buckets = self.buckets[:-1] or self.buckets


@planted("bucketed", "sum")
class OneBufferForAll(right.Bucketed):
    buffer = None

    def packed(self, bucket):  # the class's own buffer, and results that nobody copies back
        return super().packed(bucket).clone()

    def give(self, values, bucket):
        pass


@planted("bucketed", "sum")
class TwoModelsShareBuckets(right.Bucketed):
    every = []

    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module, bucket_size_mb)
        self.every.extend(self.buckets)
        self.buckets = self.every


@planted("overlap", "starts")
class AllAfterBackward(right.Bucketed):
    pass


@planted("overlap", "goes_on")
class WaitsInTheHook(right.Overlap):
    def launch(self):
        super().launch()
        self.under_way[-1][0].wait()


@planted("overlap", "goes_on")
class PollsInTheHook(right.Overlap):
    def launch(self):
        super().launch()
        while not self.under_way[-1][0].is_completed():
            pass


@planted("overlap", "goes_on")
class WaitsForTheFuture(right.Overlap):
    def launch(self):
        super().launch()
        self.under_way[-1][0].get_future().wait()


@planted("overlap", "at_once")
class ThreeBucketsAtATime(right.Overlap):
    def ready(self, parameter):
        self.missing[self.place[parameter]].discard(parameter)
        first = len(self.under_way)
        if first + 6 <= len(self.buckets) and not any(self.missing[first : first + 6]):
            for _ in range(6):
                self.launch()


@planted("overlap", "order")
class LaunchedAsReady(right.Overlap):
    def begin(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way, self.order = [], []

    def ready(self, parameter):
        index = self.place[parameter]
        self.missing[index].discard(parameter)
        if not self.missing[index]:
            values = self.packed(self.buckets[index])
            self.order.append(index)
            self.under_way.append((dist.all_reduce(values, async_op=True), values))

    def finish_gradient_synchronization(self):
        for index, (work, values) in zip(self.order, self.under_way):
            work.wait()
            self.give(values, self.buckets[index])
        self.begin()


@planted("overlap", "sum")
class LaunchedTooEarly(right.Overlap):
    def ready(self, parameter):
        self.missing[self.place[parameter]].clear()  # as if the first gradient were the whole bucket
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            self.launch()


@planted("overlap", "under_way")
class LastWaitForgotten(right.Overlap):
    def finish_gradient_synchronization(self):
        for bucket, (work, values) in list(zip(self.buckets, self.under_way))[:-1]:
            work.wait()
            self.give(values, bucket)
        self.begin()


@planted("overlap", "under_way")
class FutureNobodyWaitsFor(right.Overlap):
    def finish_gradient_synchronization(self):
        for bucket, (work, values) in zip(self.buckets, self.under_way):
            work.get_future().then(lambda _, b=bucket, v=values: self.give(v, b))
        self.begin()


@planted("no_sync", "no_sync_cost")
class NoSyncSynchronizes(right.NoSync):
    def ready(self, parameter):
        right.Overlap.ready(self, parameter)


@planted("no_sync", "no_sync_sum")
class LastMicroBatchOnly(right.NoSync):
    def ready(self, parameter):
        if self.synchronizes:
            super().ready(parameter)
        else:
            parameter.grad = None


@planted("no_sync", "no_sync_sum")
class NoSyncNeverEnds(right.NoSync):
    def no_sync(self):
        self.synchronizes = False
        return torch.no_grad().__class__.__mro__[1]() if False else nn.Identity().train and _Nothing()


class _Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


@planted("sharded_optimizer", "memory")
class EveryRankKeepsAll(right.ShardedOptimizer):
    def add_param_group(self, options):
        super().add_param_group(options)
        self.owned = self.make(self.param_groups, **self.keywords)


@planted("sharded_optimizer", "memory")
class RankZeroKeepsAll(right.ShardedOptimizer):
    def __init__(self, params, optimizer_cls, **keywords):
        super().__init__(params, optimizer_cls, **keywords)
        self.owner = dict.fromkeys(self.owner, 0)
        self.owned = self.make(list(self.owner) if dist.get_rank() == 0 else [torch.zeros(1)], **self.keywords)


@planted("sharded_optimizer", "update")
class NeverSendsWeights(right.ShardedOptimizer):
    def step(self, closure=None):
        self.update(closure)


@planted("sharded_optimizer", "groups")
class OldLearningRate(right.ShardedOptimizer):
    def step(self, closure=None):
        self.update(closure)
        for parameter, rank in self.owner.items():
            dist.broadcast(parameter.data, src=rank)


@planted("fsdp", "whole")
class WholeUntilBackward(right.FSDP):
    def drop(self, parameters):  # the parameter is a shard again, but autograd keeps the whole weight
        for parameter in parameters:
            self.whole[parameter] = torch.empty(self.whole[parameter].numel())


@planted("fsdp", "mean")
class ShardsSummed(right.FSDP):
    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad *= self.world


@planted("fsdp", "held")
class NothingIsDropped(right.FSDP):
    def __init__(self, module):
        super().__init__(module)
        self.copies = nn.ParameterList([nn.Parameter(torch.zeros(p.shape), False) for p in self.shapes.values()])


@planted("fsdp", "accumulate")
class SecondMicroBatchOnly(right.FSDP):
    def finish_gradient_synchronization(self):
        self.pending = [(work, p, mine, None, padded) for work, p, mine, _, padded in self.pending]
        super().finish_gradient_synchronization()


RIGHT = {"Naive": "naive", "Bucketed": "bucketed", "Overlap": "overlap", "NoSync": "no_sync", "TorchDDP": "no_sync",
         "ShardedOptimizer": "sharded_optimizer", "FSDP": "fsdp", "TorchFSDP": "fsdp"}


def main(names):
    from judge import judge  # a rank, which loads this file, has no need of it

    wrong = 0
    for name, stage in RIGHT.items():
        if not names or name in names:
            result = judge(right.__file__, name, stage)
            wrong += result["points"] != 100
            print(f"{name}: {result['points']} points of {stage}, {result['seconds']} s {result['failed'] or ''}", flush=True)
    for name, (stage, check) in PLANTED.items():
        if not names or name in names:
            failed = judge(__file__, name, stage, {check})["failed"]
            wrong += check not in failed
            verdict = "found" if check in failed else "NOT FOUND"
            print(f"{name}: {check} {verdict}: {failed.get(check, failed)}", flush=True)
    print(f"{wrong} judged wrongly")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
