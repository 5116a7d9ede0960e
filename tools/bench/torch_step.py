#!/usr/bin/env python3
"""PyTorch's time for one training step of lockstep's models, on the CPU.

    python3 tools/bench/torch_step.py --model gpt --steps 20          prints one line of JSON
    python3 tools/bench/torch_step.py --ranks 2 --with fsdp           starts 2 ranks over Gloo; --batch-size is each rank's
    RANK=r WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... GLOO_SOCKET_IFNAME=... python3 bench/torch_step.py --ddp-mb 1
                    one rank of DistributedDataParallel over Gloo, buckets of 1 MB; --batch-size is the rank's own

The same shapes as `train --model mlp`, `mlp-toy` and `gpt`, the same optimizer, float32, random data that lies ready in
memory. Written as one would write it in PyTorch, with the fast paths that the installed version has (fused attention
from 2.0 on). tools/bench/step_vs_pytorch.sh and tools/bench/ranks_vs_pytorch.sh run it and `train` in turns.
"""
import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

WARMUP_STEPS = 3  # as many as lockstep's statistics leave out


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))

    def attention(self, q, k, v):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        time_steps = q.shape[2]
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 + self.mask[:time_steps, :time_steps]
        return scores.softmax(dim=-1) @ v

    def forward(self, x):
        batch, time_steps, width = x.shape
        split = (batch, time_steps, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(width, dim=2))
        x = x + self.attn_proj(self.attention(q, k, v).transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=4, heads=4, width=256, context=128, vocabulary=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        logits = self.ln_f(self.h(x)) @ self.wte.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    def __init__(self, sizes, last_bias, loss):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], sizes[2])
        self.fc3 = nn.Linear(sizes[2], sizes[3], bias=last_bias)
        self.loss = loss

    def forward(self, x, targets):
        for hidden in self.fc1, self.fc2:
            x = F.gelu(hidden(x), approximate="tanh")
        return self.loss(self.fc3(x), targets)


def random_batches(name, batch):
    if name == "gpt":
        return [(torch.randint(256, (batch, 128)), torch.randint(256, (batch, 128))) for _ in range(4)]
    if name == "mlp":
        return [(torch.rand(batch, 784), torch.randint(10, (batch,))) for _ in range(4)]
    return [(torch.randn(batch, 10), torch.randn(batch, 5)) for _ in range(4)]


def build(name):
    if name == "gpt":
        return Gpt()
    if name == "mlp":
        return Mlp([784, 512, 512, 10], True, F.cross_entropy)
    return Mlp([10, 20, 20, 5], False, F.mse_loss)


def build_optimizer(name, model, divided):
    """divided: each rank holds the state of some parameters only (ZeroRedundancyOptimizer)."""
    if name != "gpt":
        kind, settings, groups = torch.optim.SGD, dict(lr=0.01), model.parameters()
    else:
        kind, settings = torch.optim.AdamW, dict(lr=1e-3, betas=(0.9, 0.95))
        matrices = [p for p in model.parameters() if p.dim() == 2]
        vectors = [p for p in model.parameters() if p.dim() != 2]
        groups = [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)]
    if divided:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **settings)
    return kind(groups, **settings)


def distribute(model, how, bucket_mb=None):
    """Over the ranks of the job: ddp, zero (DDP too; the optimizer divides its state), fsdp. bucket_mb: in MiB; without
    it, DDP's default: a first bucket of 1 MiB, then 25. (25 given as a number has no smaller first bucket.)"""
    if how in ("ddp", "zero"):
        caps = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **caps)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    for part in model.h if isinstance(model, Gpt) else model.children():
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_step(model, optimizer, batches, number, arguments):
    """Returns the seconds of the step, and of its forward, backward and optimizer."""
    begin = time.perf_counter()
    forward = backward = 0
    optimizer.zero_grad(set_to_none=True)
    for micro_batch in range(1, arguments.accumulate + 1):
        inputs, targets = batches[(number + micro_batch) % len(batches)]
        only_adds = micro_batch < arguments.accumulate and "RANK" in os.environ
        start = time.perf_counter()
        with model.no_sync() if only_adds else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
                loss = model(inputs, targets)
            loss.item()  # as a training loop that watches its loss
            middle = time.perf_counter()
            (loss / arguments.accumulate if arguments.accumulate > 1 else loss).backward()
        forward += middle - start
        backward += time.perf_counter() - middle
    last = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    return end - begin, forward, backward, end - last


def start_ranks(count):
    """Starts this program once for each rank, and returns the exit status."""
    job = dict(os.environ, WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    ranks = [subprocess.Popen([sys.executable] + sys.argv, env=dict(job, RANK=str(rank))) for rank in range(count)]
    return max(rank.wait() for rank in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "mlp-toy", "gpt"], default="gpt")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="how many to start on this machine")
    parser.add_argument("--with", dest="how", choices=["ddp", "zero", "fsdp"], help="default on several ranks: ddp")
    parser.add_argument("--ddp-mb", type=float, help="DistributedDataParallel with buckets of this many MiB")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of --batch-size in a step, DDP's with "
                        "no_sync() but for the last one")
    parser.add_argument("--compile", action="store_true", help="torch.compile() the model")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    arguments = parser.parse_args()
    if arguments.how == "fsdp" and arguments.accumulate > 1:
        parser.error("--accumulate: FSDP2 has no no_sync()")
    if arguments.ranks > 1 and "RANK" not in os.environ:
        sys.exit(start_ranks(arguments.ranks))
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model, batches = build(arguments.model), random_batches(arguments.model, arguments.batch_size)
    parameters = sum(p.numel() for p in model.parameters())
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = distribute(model, arguments.how or "ddp", arguments.ddp_mb)
    optimizer = build_optimizer(arguments.model, model, arguments.how == "zero")
    if arguments.compile:
        model = torch.compile(model)

    times = []
    for number in range(WARMUP_STEPS + arguments.steps):
        seconds = train_step(model, optimizer, batches, number, arguments)
        if number >= WARMUP_STEPS:
            times.append(seconds)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
    if os.environ.get("RANK", "0") != "0":
        return
    median = [1e3 * statistics.median(column) for column in zip(*times)]
    print(json.dumps({"torch": torch.__version__, "model": arguments.model, "threads": arguments.threads,
                      "parameters": parameters, "step_ms": {"p50": median[0]}, "forward_ms": median[1],
                      "backward_ms": median[2], "optimizer_ms": median[3], "peak_rss_mb": peak}))


if __name__ == "__main__":
    main()
