"""Wrong classes, as in planted.py: sharded optimizers, and classes that keep shards of the weights."""
import numpy
import torch
import torch.distributed as dist
from torch import nn

from planted import planter
from right import FSDP, ShardedOptimizer

PLANTED = {}
plant = planter(globals(), PLANTED)


def every_rank_keeps_all(self, options):
    ShardedOptimizer.add_param_group(self, options)
    self.owned = self.make(self.param_groups, **self.keywords)


def rank_zero_keeps_all(self, params, optimizer_cls, **keywords):
    ShardedOptimizer.__init__(self, params, optimizer_cls, **keywords)
    self.owner = dict.fromkeys(self.owner, 0)
    self.owned = self.make(list(self.owner) if dist.get_rank() == 0 else [torch.zeros(1)], **self.keywords)


def send(self, root=lambda rank: rank):
    for parameter, rank in self.owner.items():
        dist.broadcast(parameter.data, src=root(rank))


def step_with(*names, before=lambda self: None, root=lambda rank: rank):
    """A step that passes on these options only."""
    def step(self, closure=None):
        for mine, group in zip(self.owned.param_groups, self.param_groups):
            mine.update({name: group[name] for name in names})
        before(self)
        self.update(closure)
        send(self, root)

    return step


def hidden_optimizer(self, params, optimizer_cls, **keywords):  # what is counted is not what updates the weights
    ShardedOptimizer.__init__(self, params, optimizer_cls, **keywords)
    self.real = torch.optim.AdamW(self.param_groups, **keywords)


def hidden_step(self, closure=None):
    before = [parameter.detach().clone() for parameter in self.owner]
    self.owned.step()
    for parameter, value in zip(self.owner, before):
        parameter.data.copy_(value)
    self.real.step()
    send(self)


def then_step(act):
    def step(self, closure=None):
        ShardedOptimizer.step(self, closure)
        act(self)

    return step


def keeps_arrays(self):
    self.moments = [numpy.zeros(parameter.shape) for parameter in self.owner]


def keeps_storages(self):
    self.moments = [parameter.detach().clone().untyped_storage() for parameter in [*self.owner, *self.owner]]


class Moment(nn.Parameter):
    pass


def keeps_parameters(self):
    self.moments = [Moment(parameter.detach().clone()) for parameter in [*self.owner, *self.owner]]


def sends_moments(self):
    for parameter, rank in self.owner.items():
        for name in ("exp_avg", "exp_avg_sq"):
            dist.broadcast(self.owned.state[parameter].get(name, torch.zeros_like(parameter)), src=rank)


def sends_before_it_updates(self, closure=None):
    send(self)
    self.update(closure)


def first_rate_for_all(self):
    for group in self.owned.param_groups:
        group["lr"] = self.param_groups[0]["lr"]


def stops_after_four_steps(self, closure=None):
    self.steps = getattr(self, "steps", 0) + 1
    (ShardedOptimizer.step if self.steps <= 4 else ShardedOptimizer.update)(self, closure)


def without_remainder(self, params, optimizer_cls, **keywords):
    params = list(params)
    whole = len(params) // dist.get_world_size() * dist.get_world_size()
    ShardedOptimizer.__init__(self, params[:whole], optimizer_cls, **keywords)


def second_group_not_sent(self, closure=None):
    self.owner = {p: rank for p, rank in self.owner.items() if p in set(self.param_groups[0]["params"])}
    ShardedOptimizer.step(self, closure)


plant("HiddenOptimizer", ShardedOptimizer, "memory", __init__=hidden_optimizer, step=hidden_step)
plant("HiddenArrays", ShardedOptimizer, "memory", step=then_step(keeps_arrays))
plant("HiddenStorages", ShardedOptimizer, "memory", step=then_step(keeps_storages))
plant("HiddenParameters", ShardedOptimizer, "memory", step=then_step(keeps_parameters))
plant("SendsMoments", ShardedOptimizer, "traffic", step=then_step(sends_moments))
plant("StateForgotten", ShardedOptimizer, "update", step=then_step(lambda self: self.owned.state.clear()))
plant("SendsBeforeItUpdates", ShardedOptimizer, "update", step=sends_before_it_updates)
plant("SendsFromTheNextRank", ShardedOptimizer, "update",
      step=step_with("lr", root=lambda rank: (rank + 1) % dist.get_world_size()))
plant("StopsAfterFourSteps", ShardedOptimizer, "update", step=stops_after_four_steps)
plant("RemainderHasNoOwner", ShardedOptimizer, "update", __init__=without_remainder)
plant("ZeroesItsOwnOnly", ShardedOptimizer, "update", zero_grad=lambda self: self.owned.zero_grad())
plant("SecondGroupNotSent", ShardedOptimizer, "groups", step=second_group_not_sent)
plant("FirstRateForAll", ShardedOptimizer, "groups", step=step_with(before=first_rate_for_all))
plant("OnlyTheRatePassedOn", ShardedOptimizer, "groups", step=step_with("lr"))


plant("EveryRankKeepsAll", ShardedOptimizer, "memory", add_param_group=every_rank_keeps_all)
plant("RankZeroKeepsAll", ShardedOptimizer, "memory", __init__=rank_zero_keeps_all)
plant("NeverSendsWeights", ShardedOptimizer, "update", step=lambda self: self.update(None))
plant("OldOptions", ShardedOptimizer, "groups", step=step_with())


def kept_by_autograd(self, parameters):
    for parameter in parameters:
        self.whole[parameter] = torch.empty(self.whole[parameter].numel())


def never_a_shard(self, module):
    FSDP.__init__(self, module)
    self.copies = nn.ParameterList([nn.Parameter(torch.zeros(shape), False) for shape in self.shapes.values()])


def times_world(self):
    FSDP.finish_gradient_synchronization(self)
    for parameter in self.parameters():
        parameter.grad = None if parameter.grad is None else parameter.grad * self.world


def second_micro_batch_only(self):
    self.pending = [(work, p, mine, None, padded) for work, p, mine, _, padded in self.pending]
    FSDP.finish_gradient_synchronization(self)


def open_whole(self, parameter, values):
    whole, shape = self.whole[parameter], self.shapes[parameter]
    whole.untyped_storage().resize_(4 * whole.numel())
    parameter.data = whole[: shape.numel()].view(shape)
    parameter.data.copy_(torch.as_tensor(values).view(shape))


def keeps(copy):
    """After a layer's forward, a copy of its whole weights stays."""
    def after_forward(self, own, result):
        self.copies = getattr(self, "copies", {}) | {parameter: copy(parameter.data) for parameter in own}
        FSDP.after_forward(self, own, result)

    return after_forward


def array_of(values):
    return numpy.array(values.clone())  # numpy would keep the memory of the values themselves from being given back


def from_copies(self, parameters):
    for parameter in parameters:
        values = getattr(self, "copies", {}).pop(parameter, None)
        FSDP.gather(self, [parameter]) if values is None else open_whole(self, parameter, values)


def pickled(self, parameters):
    for parameter in parameters:
        if parameter in getattr(self, "copies", {}):
            parts = [None] * self.world
            dist.all_gather_object(parts, numpy.array(parameter.shard))
            open_whole(self, parameter, numpy.concatenate(parts)[: self.shapes[parameter].numel()])
            del self.copies[parameter]
        else:
            FSDP.gather(self, [parameter])


def whole_sums(self, mine, padded):
    dist.all_reduce(padded)
    mine.copy_(padded.chunk(self.world)[self.rank])
    done = torch.futures.Future()
    done.set_result(None)
    return done


def gather_all_first(self, *args):
    self.gather(list(self.module.parameters()))
    self.ahead = set(self.module.parameters())
    return FSDP.forward(self, *args)


def unless_gathered(self, parameters):
    FSDP.gather(self, [p for p in parameters if p not in self.ahead])
    self.ahead = self.ahead - set(parameters)


plant("GathersAllAhead", FSDP, "whole", ahead=set(), forward=gather_all_first, gather=unless_gathered)
plant("GradientsAllReduced", FSDP, "traffic", scatter_sum=whole_sums)
plant("ArraysForBackward", FSDP, "whole", after_forward=keeps(array_of), gather=from_copies)
plant("ArraysBesideTheShards", FSDP, "held", after_forward=keeps(array_of))
plant("TensorsBesideTheShards", FSDP, "held", after_forward=keeps(torch.clone))
plant("ListsBesideTheShards", FSDP, "held", after_forward=keeps(lambda values: values.flatten().tolist()))
plant("PicklesForBackward", FSDP, "whole", after_forward=keeps(lambda _: ()), gather=pickled)
plant("WholeUntilBackward", FSDP, "whole", drop=kept_by_autograd)
plant("ShardsSummed", FSDP, "mean", finish_gradient_synchronization=times_world)
plant("NeverAShard", FSDP, "held", __init__=never_a_shard)
plant("SecondMicroBatchOnly", FSDP, "accumulate", finish_gradient_synchronization=second_micro_batch_only)
