"""A right class for each stage, and PyTorch's own behind the same interface. None is written to be fast."""
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def grouped(parameters, cap):
    """Buckets, in the order in which backward finishes gradients. One closes once it holds its cap."""
    buckets, held = [[]], 0
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        if buckets[-1] and held >= cap:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter)
        held += parameter.numel() * parameter.element_size()
    return buckets


class Naive(nn.Module):
    """Rank 0's weights go to all; one all-reduce per parameter, after backward."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.world = dist.get_world_size()
        self.start()

    def start(self):
        for parameter in self.module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *args, **keywords):
        return self.module(*args, **keywords)

    def finish_gradient_synchronization(self):
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # unused here, but another rank may have used it
                    parameter.grad = torch.zeros_like(parameter)
                self.average(parameter.grad)

    def average(self, gradient):
        dist.all_reduce(gradient)
        gradient /= self.world


class ReduceAndBroadcast(Naive):
    """Rank 0 adds up, and sends the sum to all."""

    def average(self, gradient):
        dist.reduce(gradient, 0)
        dist.broadcast(gradient, 0)
        gradient /= self.world


class Bucketed(Naive):
    """One all-reduce per bucket, after backward."""

    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module)
        self.buckets = grouped(module.parameters(), bucket_size_mb * 2**20)

    def finish_gradient_synchronization(self):
        for bucket in self.buckets:
            self.unpack(self.packed(bucket), bucket)

    def packed(self, bucket):
        values = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in bucket]
        return torch.cat(values) / self.world

    def unpack(self, values, bucket):
        dist.all_reduce(values)
        self.give(values, bucket)

    def give(self, values, bucket):
        for parameter, part in zip(bucket, values.split([p.numel() for p in bucket])):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))


class Overlap(Bucketed):
    """A bucket's all-reduce starts when its gradients are complete, in the order of buckets, and backward goes on."""

    def __init__(self, module, bucket_size_mb=1):
        super().__init__(module, bucket_size_mb)
        self.place = {p: index for index, bucket in enumerate(self.buckets) for p in bucket}
        for parameter in self.place:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.begin()

    def begin(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way = []

    def ready(self, parameter):
        self.missing[self.place[parameter]].discard(parameter)
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            self.launch()

    def launch(self):
        values = self.packed(self.buckets[len(self.under_way)])
        self.under_way.append((dist.all_reduce(values, async_op=True), values))

    def finish_gradient_synchronization(self):
        while len(self.under_way) < len(self.buckets):  # unused parameters count as zeros
            self.launch()
        for bucket, (work, values) in zip(self.buckets, self.under_way):
            work.wait()
            self.give(values, bucket)
        self.begin()


class WaitAll(Overlap):
    """Divides in the callback of a future, and waits for all futures at once."""

    def launch(self):
        values = self.packed(self.buckets[len(self.under_way)]) * self.world
        future = dist.all_reduce(values, async_op=True).get_future()
        self.under_way.append(future.then(lambda done: done.value()[0].div_(self.world)))

    def finish_gradient_synchronization(self):
        while len(self.under_way) < len(self.buckets):
            self.launch()
        for bucket, values in zip(self.buckets, torch.futures.wait_all(self.under_way)):
            self.give(values, bucket)
        self.begin()


class AsksAfterBackward(Overlap):
    """Asks again and again whether a collective is done, and sleeps between the questions."""

    def finish_gradient_synchronization(self):
        for work, _ in self.under_way:
            while not work.is_completed():
                time.sleep(0.002)
        super().finish_gradient_synchronization()


class Thread(Overlap):
    """A thread of its own takes buckets from a queue, and waits for each all-reduce."""

    def begin(self):
        super().begin()
        if not hasattr(self, "full"):
            self.full = queue.Queue()
            threading.Thread(target=self.communicate, daemon=True).start()

    def communicate(self):
        while True:
            dist.all_reduce(self.full.get())
            self.full.task_done()

    def launch(self):
        values = self.packed(self.buckets[len(self.under_way)])
        self.under_way.append((self, values))
        self.full.put(values)

    def wait(self):
        self.full.join()


class Pool(Overlap):
    """A pool's thread waits for each all-reduce; between them it waits in C, where Python has no frame for it."""

    pool = ThreadPoolExecutor(1)

    def launch(self):
        values = self.packed(self.buckets[len(self.under_way)])
        future = self.pool.submit(dist.all_reduce, values)
        future.wait = future.result
        self.under_way.append((future, values))


class NoSync(Overlap):
    """Inside no_sync(), gradients only add up on each rank."""

    synchronizes = True

    def ready(self, parameter):
        if self.synchronizes:
            super().ready(parameter)

    @contextmanager
    def no_sync(self):
        self.synchronizes = False
        yield
        self.synchronizes = True


class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank updates its own parameters, and sends them to all."""

    def __init__(self, params, optimizer_cls, **keywords):
        self.make, self.keywords = optimizer_cls, keywords
        self.owned, self.load = None, [0] * dist.get_world_size()
        self.owner = {}
        super().__init__(params, keywords)

    def add_param_group(self, options):
        super().add_param_group(options)
        mine = []
        for parameter in self.param_groups[-1]["params"]:
            rank = self.owner[parameter] = self.load.index(min(self.load))
            self.load[rank] += parameter.numel()
            if rank == dist.get_rank():
                mine.append(parameter)
        group = {**self.param_groups[-1], "params": mine}
        if self.owned is None:
            self.owned = self.make([group], **self.keywords)
        else:
            self.owned.add_param_group(group)

    def step(self, closure=None):
        for mine, group in zip(self.owned.param_groups, self.param_groups):
            mine.update({key: value for key, value in group.items() if key != "params"})
        self.update(closure)
        for parameter, rank in self.owner.items():
            dist.broadcast(parameter.data, src=rank)

    def update(self, closure):
        self.owned.step(closure)


class FSDP(nn.Module):
    """Each rank keeps a part of every weight. A layer's weights are whole while it computes, forward and backward."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.whole, self.shapes, self.pending = {}, {}, []
        for parameter in module.parameters():
            self.shard(parameter)
        for layer in module.modules():
            own = list(layer.parameters(recurse=False))
            if own:
                layer.register_forward_pre_hook(lambda *_, own=own: self.gather(own))
                layer.register_forward_hook(lambda layer, args, result, own=own: self.after_forward(own, result))

    def forward(self, *args, **keywords):
        return self.module(*args, **keywords)

    def shard(self, parameter):
        dist.broadcast(parameter.data, src=0)
        self.shapes[parameter] = parameter.shape
        length = -(-parameter.numel() // self.world) * self.world
        padded = torch.zeros(length)
        padded[: parameter.numel()] = parameter.data.flatten()
        self.whole[parameter] = torch.empty(length)
        self.drop([parameter])
        parameter.shard = padded.chunk(self.world)[self.rank].clone()
        parameter.data = parameter.shard
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def gather(self, parameters):
        for parameter in parameters:
            whole = self.whole[parameter]
            whole.untyped_storage().resize_(4 * whole.numel())
            dist.all_gather_into_tensor(whole, parameter.shard)
            shape = self.shapes[parameter]
            parameter.data = whole[: shape.numel()].view(shape)

    def drop(self, parameters):
        for parameter in parameters:
            self.whole[parameter].untyped_storage().resize_(0)

    def leave(self, parameters):
        for parameter in parameters:
            parameter.data = parameter.shard
        self.drop(parameters)

    def after_forward(self, own, result):
        self.leave(own)
        kept = {}

        def before(_gradient):
            kept.update({p: p.grad for p in own})  # the sums of earlier micro-batches have a shard's shape
            for parameter in own:
                parameter.grad = None
            self.gather(own)
            self.open = (own, kept)

        result.register_hook(before)

    def reduce(self, parameter):
        own, kept = self.open
        padded = torch.zeros(self.whole[parameter].numel())
        padded[: parameter.numel()] = parameter.grad.flatten() / self.world
        mine = torch.empty(padded.numel() // self.world)
        work = self.scatter_sum(mine, padded)
        parameter.grad = None
        self.pending.append((work, parameter, mine, kept.get(parameter), padded))
        done = {entry[1] for entry in self.pending}
        if all(p in done for p in own if p.requires_grad):
            self.leave(own)

    def scatter_sum(self, mine, padded):
        return dist.reduce_scatter_tensor(mine, padded, async_op=True)

    def finish_gradient_synchronization(self):
        for work, parameter, mine, before, _ in self.pending:
            work.wait()
            parameter.grad = mine if before is None else before + mine
        self.pending = []

    def gather_full_params(self):
        result = {}
        for name, parameter in self.module.named_parameters():
            self.gather([parameter])
            result[name] = parameter.data.clone()
            self.leave([parameter])
        return result


class TorchDDP(nn.Module):
    """PyTorch's DistributedDataParallel, which has finished when backward has."""

    def __init__(self, module, bucket_cap_mb=1):
        super().__init__()
        unused = getattr(module, "kind", "") in ("unused", "unused_on_one")
        self.ddp = nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=unused)

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def finish_gradient_synchronization(self):
        pass


class TorchFSDP(nn.Module):
    """PyTorch's fully_shard (FSDP2), one group for each layer."""

    def __init__(self, module):
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
        for layer in module.modules():
            if list(layer.parameters(recurse=False)):
                fully_shard(layer)
        self.module = fully_shard(module)

    def forward(self, *args):
        return self.module(*args)

    def finish_gradient_synchronization(self):
        pass

    def gather_full_params(self):
        return {name: parameter.full_tensor() for name, parameter in self.module.named_parameters()}
