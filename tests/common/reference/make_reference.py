#!/usr/bin/env python3
"""Writes the reference values that tests/common/test_reference.c compares lockstep with.

    python3 tests/common/reference/make_reference.py          needs PyTorch 1.13 or newer; the files are kept in git

Four tiny models, built from PyTorch's own layers: a GPT-2 (gpt.txt), an MLP classifier with GELU (mlp.txt), the same
with batch norm (mlp-norm.txt), and an MLP for regression with ReLU (mlp-toy.txt). Weights and inputs are float32 numbers; everything computed from them is computed in
float64. So the reference has no rounding errors worth mentioning, and the tolerances of the test need to cover only
lockstep's own float32.

The format is plain text. A line that starts with '#' is a comment. A record is one line

    NAME NDIM DIM_0 ... DIM_(NDIM-1)

followed by DIM_0 * ... * DIM_(NDIM-1) numbers in C's "%a" form (hexadecimal: no digit is lost), row-major.
Records of a file:

    sizes                   the numbers the model is built from (see the calls at the end)
    inputs, targets         one batch; token numbers and classes are written as numbers, too
    weight/NAME, grad/NAME  initial weight, and the gradient of the MEAN loss, of every parameter, in order
    logits, loss            of that batch with the initial weights; loss is the mean. (Logits: in evaluation)
    grad_norm               L2 norm of all gradients together
    RUN/options             kind (0 SGD, 1 AdamW), lr, momentum, beta1, beta2, eps, weight_decay, max_norm (0: no clip)
    RUN/losses              loss before each of 10 steps on the same batch (with batch norm 50), and after the last
    RUN/NAME                a buffer after these steps
"""
import copy
import math
import os

import torch
import torch.nn.functional as F
from torch import nn


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
        self.fc1, self.fc2 = nn.Linear(inputs, hidden1, bias=not norm), nn.Linear(hidden1, hidden2, bias=not norm)
        self.bn1, self.bn2 = (nn.BatchNorm1d(n) if norm else nn.Identity() for n in (hidden1, hidden2))
        self.fc3 = nn.Linear(hidden2, outputs, bias=last_bias)
        self.relu, self.loss = relu, loss

    def activate(self, x):
        return F.relu(x) if self.relu else F.gelu(x, approximate="tanh")

    def forward(self, x):
        return self.fc3(self.activate(self.bn2(self.fc2(self.activate(self.bn1(self.fc1(x)))))))


def draw_weights(model):
    """Large random numbers, biases and norms included: near GPT-2's own initial weights (0.02, 0 and 1) the
    attention is all but uniform, and a wrong bias would not show."""
    for name, parameter in model.named_parameters():
        centre = 1.0 if ("ln_" in name or "bn" in name) and name.endswith("weight") else 0.0
        spread = 0.4 if parameter.dim() == 2 else 0.2
        parameter.data = (centre + spread * torch.randn(parameter.shape, dtype=torch.float32)).double()


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


def write_record(file, name, values, single=True):
    """single: round to float32, which keeps the file short."""
    tensor = torch.as_tensor(values)
    numbers = [float(v) for v in (tensor.float() if single else tensor.double()).flatten()]
    file.write(" ".join([name, str(tensor.dim())] + [str(d) for d in tensor.shape]) + "\n")
    for start in range(0, len(numbers), 8):
        file.write(" ".join(hexadecimal(v) for v in numbers[start:start + 8]) + "\n")


def write_reference(path, model, sizes, inputs, targets):
    draw_weights(model)
    model.double()
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
        write_record(file, "inputs", inputs)
        write_record(file, "targets", targets)
        for name, parameter in model.named_parameters():
            write_record(file, "weight/" + name, parameter.detach())
        for name, buffer in buffers(untouched):
            write_record(file, "weight/" + name, buffer)
        write_record(file, "logits", logits.detach())
        write_record(file, "loss", loss.detach().reshape(1), single=False)
        for name, parameter in model.named_parameters():
            write_record(file, "grad/" + name, parameter.grad)
        write_record(file, "grad_norm", torch.tensor([norm], dtype=torch.float64), single=False)
        for name, run in runs.items():
            # The C side holds its options as float32: let PyTorch use the very same numbers.
            run = [float(torch.tensor(v, dtype=torch.float32)) for v in run]
            run[0] = int(run[0])
            write_record(file, name + "/options", run)
            losses, trained = train(untouched, inputs, targets, run, 50 if buffers(model) else 10)
            write_record(file, name + "/losses", torch.tensor(losses, dtype=torch.float64), single=False)
            for buffer_name, buffer in buffers(trained):
                write_record(file, name + "/" + buffer_name, buffer)
            print("%-12s %-14s loss %.6f -> %.6f" % (os.path.basename(path), name, losses[0], losses[-1]))


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    torch.manual_seed(1)

    # layers, heads, width, context, vocabulary, padded vocabulary. Fewer positions than the context has, and no
    # token from the padding: some rows of both tables get no gradient from the embedding.
    sizes = [2, 2, 8, 8, 13, 16]
    tokens = torch.randint(13, (3, 7))
    write_reference(os.path.join(folder, "gpt.txt"), Gpt(*sizes[:4], sizes[5]), sizes, tokens[:, :-1], tokens[:, 1:])

    # inputs, hidden 1, hidden 2, outputs, last_bias, relu
    inputs = torch.randn(10, 7).double()
    write_reference(os.path.join(folder, "mlp.txt"), Mlp(7, 11, 6, 5, True, False, F.cross_entropy),
                    [7, 11, 6, 5, 1, 0], inputs, torch.randint(5, (10,)))
    inputs, targets = torch.randn(8, 10).double(), torch.randn(8, 5).double()
    write_reference(os.path.join(folder, "mlp-toy.txt"), Mlp(10, 20, 20, 5, False, True, F.mse_loss),
                    [10, 20, 20, 5, 0, 1], inputs, targets)
    write_reference(os.path.join(folder, "mlp-norm.txt"), Mlp(7, 11, 6, 5, True, False, F.cross_entropy, True),
                    [7, 11, 6, 5, 1, 0], torch.randn(10, 7).double(), torch.randint(5, (10,)))


if __name__ == "__main__":
    main()
