#!/usr/bin/env python3
"""Writes the reference values that tests/common/test_reference.c compares lockstep with.

    python3 tests/common/reference/make_reference.py          needs PyTorch 1.13 or newer; the files are kept in git

Four tiny models, built from PyTorch's own layers: a GPT-2 (gpt.txt), an MLP classifier with GELU (mlp.txt), the same
with batch norm (mlp-norm.txt), and an MLP for regression with ReLU (mlp-toy.txt). Weights and inputs are float32
numbers; everything computed from them is computed in float64. So the reference has no rounding errors worth mentioning,
and the tolerances of the test need to cover only lockstep's own float32.

The format is plain text. A line that starts with '#' is a comment. A record is one line

    NAME COUNT NUMBER...

with numbers in C's "%a" form (hexadecimal: no digit is lost). Records of a file:

    sizes                   the numbers the model is built from (see the calls at the end), samples, time
    logits, loss            of one batch with the initial weights; loss is the mean. (Logits: in evaluation)
    grad/NAME               gradient of the MEAN loss, of every parameter, in order
    grad_norm               L2 norm of all gradients together
    RUN/options             kind (0 SGD, 1 AdamW), lr, momentum, beta1, beta2, eps, weight_decay, max_norm (0: no clip)
    RUN/losses              loss before each of 10 steps on the same batch, and after the last (batch norm: before every
                            fifth of 50 steps)
    RUN/NAME                a buffer after these steps

Weights, inputs and targets are not written, because draw() makes them anywhere. Of logits, gradients and buffers there
are four numbers: the sums of every fourth element, each times a factor of its own. An element that is wrong, or at
another's place, changes one of them.
"""
import copy
import math
import os
import textwrap

import torch
import torch.nn.functional as F
from torch import nn

INPUTS, TARGETS = 101, 102  # series of draw(); factors are series 0, weights those from 1


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        split = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(future, -math.inf).softmax(dim=-1)
        return self.c_proj((attention @ v).transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Layers before norms, tied output layer; names as nanoGPT has them."""

    def __init__(self, layers, heads, width, context, padded_vocabulary):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(padded_vocabulary, width),
            wpe=nn.Embedding(context, width),
            h=nn.ModuleList(Block(width, heads) for _ in range(layers)),
            ln_f=nn.LayerNorm(width)))

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe.weight[:tokens.shape[1]]
        for block in self.transformer.h:
            x = block(x)
        return self.transformer.ln_f(x) @ self.transformer.wte.weight.t()

    def loss(self, logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    def __init__(self, inputs, hidden1, hidden2, outputs, last_bias, relu, loss, norm=False):
        super().__init__()
        batch_norm = nn.BatchNorm1d if norm else nn.Identity
        self.fc1, self.bn1 = nn.Linear(inputs, hidden1, bias=not norm), batch_norm(hidden1)
        self.fc2, self.bn2 = nn.Linear(hidden1, hidden2, bias=not norm), batch_norm(hidden2)
        self.fc3 = nn.Linear(hidden2, outputs, bias=last_bias)
        self.relu, self.loss = relu, loss

    def activate(self, x):
        return F.relu(x) if self.relu else F.gelu(x, approximate="tanh")

    def forward(self, x):
        return self.fc3(self.activate(self.bn2(self.fc2(self.activate(self.bn1(self.fc1(x)))))))


def draw(series, place):
    """A number in [0, 1). test_reference.c has the same, with the constants of splitmix64."""
    z = (series << 32 | place) * 0x9e3779b97f4a7c15 % 2**64
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    z = (z ^ z >> 27) * 0x94d049bb133111eb % 2**64
    return (z >> 40) / 2**24


def draw_weights(model):
    """Large random numbers, biases and norms included: near GPT-2's own initial weights (0.02, 0 and 1) the
    attention is all but uniform, and a wrong bias would not show."""
    for series, (name, parameter) in enumerate(model.named_parameters(), 1):
        centre = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
        spread = 0.75 if parameter.dim() == 2 else 0.375
        values = [centre + spread * (2 * draw(series, i) - 1) for i in range(parameter.numel())]
        parameter.data = torch.tensor(values, dtype=torch.float32).double().reshape(parameter.shape)


def draw_batch(series, shape, limit=None):
    """Token numbers or classes below limit; without one, real numbers."""
    values = [draw(series, i) for i in range(math.prod(shape))]
    values = [4 * v - 2 for v in values] if limit is None else [int(limit * v) for v in values]
    return torch.tensor(values, dtype=torch.float64 if limit is None else torch.int64).reshape(shape)


def four_sums(tensor):
    products = [(0.5 + draw(0, i)) * float(value) for i, value in enumerate(tensor.detach().flatten())]
    return [math.fsum(products[k::4]) for k in range(4)]


def options(kind, lr, momentum=0.0, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0, max_norm=0.0):
    return [kind, lr, momentum, betas[0], betas[1], eps, weight_decay, max_norm]


def make_optimizer(model, kind, lr, momentum, beta1, beta2, eps, weight_decay):
    if kind == 0:
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [dict(params=matrices, weight_decay=weight_decay), dict(params=vectors, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps)


def buffers(model):
    return [(name, buffer) for name, buffer in model.named_buffers() if "num_batches" not in name]


def train(model, inputs, targets, run, steps):
    """The losses of some steps on one batch, and the trained model; the model given is left as it was."""
    model = copy.deepcopy(model)
    *settings, max_norm = run
    optimizer = make_optimizer(model, *settings)
    losses = []
    for step in range(steps + 1):
        loss = model.loss(model(inputs), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if max_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if step < steps:
            optimizer.step()
    return losses, model


def hexadecimal(value):
    """As float.hex(), without the zeros at the end: 0x1.8p-3."""
    mantissa, exponent = float(value).hex().split("p")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + "p" + exponent


def write_record(file, name, values):
    numbers = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
    record = " ".join([name, str(len(numbers))] + [hexadecimal(v) for v in numbers])
    file.write(textwrap.fill(record, 120, break_on_hyphens=False) + "\n")


def write_reference(path, model, sizes, inputs, targets):
    model.double()
    draw_weights(model)
    untouched = copy.deepcopy(model)  # its buffers: a forward pass changes them
    logits = copy.deepcopy(model).eval()(inputs)
    loss = model.loss(model(inputs), targets)
    loss.backward()
    norm = math.sqrt(sum(float((p.grad ** 2).sum()) for p in model.parameters()))
    runs = {"sgd": options(0, 0.1),
            "sgd_momentum": options(0, 0.1, momentum=0.9, weight_decay=0.01),
            "sgd_clipped": options(0, 0.1, max_norm=norm / 2),
            "adamw": options(1, 0.003, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)}
    with open(path, "w") as file:
        file.write("# Written by make_reference.py, which describes the format; PyTorch %s.\n" % torch.__version__)
        write_record(file, "sizes", sizes)
        write_record(file, "logits", four_sums(logits))
        write_record(file, "loss", loss.item())
        for name, parameter in model.named_parameters():
            write_record(file, "grad/" + name, four_sums(parameter.grad))
        write_record(file, "grad_norm", norm)
        for name, run in runs.items():
            # The C side holds its options as float32: let PyTorch use the very same numbers.
            run = [float(torch.tensor(v, dtype=torch.float32)) for v in run]
            run[0] = int(run[0])
            write_record(file, name + "/options", run)
            steps = 50 if buffers(model) else 10
            losses, trained = train(untouched, inputs, targets, run, steps)
            write_record(file, name + "/losses", losses[::steps // 10])
            for buffer_name, buffer in buffers(trained):
                write_record(file, name + "/" + buffer_name, four_sums(buffer))
            print("%-12s %-14s loss %.6f -> %.6f" % (os.path.basename(path), name, losses[0], losses[-1]))


def main():
    folder = os.path.dirname(os.path.abspath(__file__))

    # layers, heads, width, context, vocabulary, padded vocabulary. Fewer positions than the context has, and no
    # token from the padding: some rows of both tables get no gradient from the embedding.
    gpt = [2, 2, 8, 8, 13, 16]
    tokens, targets = draw_batch(INPUTS, (3, 6), 13), draw_batch(TARGETS, (3, 6), 13)
    write_reference(os.path.join(folder, "gpt.txt"), Gpt(*gpt[:4], gpt[5]), gpt + [3, 6], tokens, targets)

    # inputs, hidden 1, hidden 2, outputs, last_bias, relu
    classifier = [7, 11, 6, 5, True, False]
    inputs, targets = draw_batch(INPUTS, (10, 7)), draw_batch(TARGETS, (10,), 5)
    for name, norm in [("mlp.txt", False), ("mlp-norm.txt", True)]:
        write_reference(os.path.join(folder, name), Mlp(*classifier, F.cross_entropy, norm), classifier + [10, 1],
                        inputs, targets)
    toy = [10, 20, 20, 5, False, True]
    write_reference(os.path.join(folder, "mlp-toy.txt"), Mlp(*toy, F.mse_loss), toy + [8, 1],
                    draw_batch(INPUTS, (8, 10)), draw_batch(TARGETS, (8, 5)))


if __name__ == "__main__":
    main()
