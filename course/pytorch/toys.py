"""The models that classes are tried with, their data, and what one process computes. Weights follow from a seed."""
import torch
from torch import nn

import group

WIDTHS = (6, 11, 7, 13, 9, 12, 8, 10, 5)  # every product of two neighbours is another number
WIDE = (6, 44, 28, 52, 36, 48, 32, 40, 5)  # where memory is judged: weights must be more than what Python uses itself
LAYERS = len(WIDTHS) - 1


class Mark(torch.autograd.Function):
    """Is the identity, and writes down when backward comes through."""

    @staticmethod
    def forward(ctx, x, number):
        ctx.number = number
        group.log.append(["forward", number])
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        group.let_threads_run()
        group.log.append(["enters", ctx.number])
        if ctx.number < 0:
            group.backward_ends()
        return gradient, None


class Toy(nn.Module):
    """Linear layers. KIND is one of plain, wide, frozen (and wide), tied, unused, unused_on_one, branches."""

    def __init__(self, kind, rank):
        super().__init__()
        self.kind, self.rank = kind, rank
        widths = WIDE if kind in ("wide", "frozen") else WIDTHS
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        if kind == "frozen":
            self.layers[2].weight.requires_grad_(False)
            self.layers[4].bias.requires_grad_(False)
        if kind == "tied":
            self.twin = nn.Linear(WIDTHS[0], WIDTHS[1])
            self.twin.weight = self.layers[0].weight
        if kind in ("unused", "unused_on_one", "branches"):
            self.extra = nn.Linear(WIDTHS[3], WIDTHS[4])
        if kind == "branches":
            self.other = nn.Linear(WIDTHS[3], WIDTHS[4], bias=False)

    def forward(self, x):
        x = Mark.apply(x if x.requires_grad else x.requires_grad_(), -1)
        twin = self.twin(x) if self.kind == "tied" else 0
        for number, layer in enumerate(self.layers):
            before, x = x, layer(x) + (twin if number == 0 else 0)
            if number == 3 and self.kind == "branches":
                pair = [self.extra, self.other] if self.rank % 2 == 0 else [self.other, self.extra]
                second, first = pair[1](before), pair[0](before)
                x = x + first + second
            if number == 3 and self.kind == "unused_on_one" and self.rank != 0:
                x = x + self.extra(before)
            x = Mark.apply(torch.tanh(x), number)
        return x


def values(kind, seed):
    """Name and value of every parameter, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(kind, 0)
    return {name: torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
            for name, parameter in model.named_parameters()}


def put(model, named):
    """Overwrites a model's parameters, whatever a class has put before their names."""
    for name, parameter in model.named_parameters():
        parameter.detach().copy_(named[plain(name, named)])


def prepare_update(case, step, parameters, optimizer):
    """The gradients of a step in which only the optimizer is judged; with groups, their options change once."""
    for parameter, value in zip(parameters, values("frozen", 20 + step).values()):
        parameter.grad = value if parameter.requires_grad else None
    if case.get("groups") and step == 2:
        for options in optimizer.param_groups:
            options["lr"] *= 0.25
            options["weight_decay"] *= 3


def grouped(case, model):
    """The parameters of an optimizer, and how it gets them: some, all, or two groups."""
    some = list(model.parameters())[: case.get("count")]
    return some, [{"params": some[:5], "lr": 0.02}, {"params": some[5:]}] if case.get("groups") else some


def plain(name, named):
    """The name without what wrapping has put before it."""
    return next((known for known in named if name == known or name.endswith("." + known)), name)


def batch(rank, step, rows):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, WIDTHS[0], generator=generator), torch.randn(rows, WIDTHS[-1], generator=generator)


def loss_of(output, target, divisor):
    return ((output - target) ** 2).sum() / divisor


def gradients(kind, named, step, shares, ranks=None):
    """In float64: the gradient of the mean over all rows of the ranks' shares, or of some ranks' parts of it."""
    trained = [name for name, parameter in Toy(kind, 0).named_parameters() if parameter.requires_grad]
    total = {name: torch.zeros(named[name].shape, dtype=torch.float64) for name in trained}
    for rank in range(len(shares)) if ranks is None else ranks:
        model = Toy(kind, rank).double()
        put(model, named)
        x, target = batch(rank, step, shares[rank])
        loss_of(model(x.double()), target.double(), sum(shares)).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                total[name] += parameter.grad
    return total
