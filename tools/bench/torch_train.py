#!/usr/bin/env python3
"""PyTorch trains the GPT as `train --model gpt` does, on the same text with the same schedule.

    python3 tools/bench/torch_train.py --ranks 2                      DistributedDataParallel (DDP) over Gloo
    python3 tools/bench/torch_train.py --threads 2                    one process
    python3 tools/bench/torch_train.py --steps 280 --threads 2        a shorter schedule
    python3 tools/bench/torch_train.py --ranks 4 --hook powersgd:4    gradients are sent by one of PyTorch's hooks

The same model and deviations of its first weights (other random numbers), windows of the same length in another random
order, AdamW, clipping, warm-up and cosine. At the end, the loss on the last tenth of the text, as `train` measures it.
Prints one line of JSON. tools/bench/train_vs_pytorch.sh runs it and `train` in turns.
"""
import argparse
import gzip
import json
import math
import os
import sys
import time

import torch

from torch_step import Gpt, build_optimizer, distribute, start_ranks

CONTEXT = 128
WARMUP, PEAK = 100, 1.4e-3  # steps, learning rate; `train --help`: the defaults of gpt


def initialize(model):
    """torch_step.Gpt's weights have a deviation of 0.02 already; lockstep's other rules: common/nn/gpt.c."""
    for name, parameter in model.named_parameters():
        if name.endswith("proj.weight"):
            torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(model.h)))
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)


def read_text(path):
    """Returns the text to train on, and its last tenth, which is held out."""
    text = torch.frombuffer(bytearray(gzip.open(path).read()), dtype=torch.uint8).long()
    held_out = len(text) // 10
    return text[:-held_out], text[-held_out:]


def windows(text, starts):
    block = torch.stack([text[start:start + CONTEXT + 1] for start in starts])
    return block[:, :-1], block[:, 1:]


def epochs(text, generator):
    """Numbers of windows in random order without end; each epoch cuts the text at other places."""
    while True:
        shift = int(torch.randint(CONTEXT, (1,), generator=generator))
        count = (len(text) - 1 - (CONTEXT - 1)) // CONTEXT
        yield from (shift + CONTEXT * torch.randperm(count, generator=generator)).tolist()


def learning_rate(step, steps):
    warmup = min(WARMUP, steps // 10)
    if step < warmup:
        return PEAK * (step + 1) / warmup
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - 1 - warmup)))


@torch.no_grad()
def loss_on(model, text, rank, ranks, batch):
    starts = list(range(rank * CONTEXT, len(text) - CONTEXT, ranks * CONTEXT))
    total = 0.0
    for first in range(0, len(starts), batch):
        chosen = starts[first:first + batch]
        total += model(*windows(text, chosen)).item() * len(chosen)
    sums = torch.tensor([total, len(starts)], dtype=torch.float64)
    if ranks > 1:
        torch.distributed.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def send_by(hook, model):
    """Registers the hook; returns a function for the bytes that a rank gives to all-reduces in a step, by its own count."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    numbers = sum(parameter.numel() for parameter in model.parameters())
    if hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return lambda: 2 * numbers
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(hook.removeprefix("powersgd:")),
                                        start_powerSGD_iter=2)  # as early as it can, as lockstep does
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return lambda: 4 * numbers / state.compression_stats()[0]


def train_step(model, optimizer, inputs, targets, rate):
    """Returns the loss, on the rank's part of the batch."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = model(inputs, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--batch-size", type=int, default=8, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--hook", choices=["bf16", "powersgd:1", "powersgd:4"], help="with --ranks 2 or more")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--data", default="/usr/share/doc/jargon-text/jargon.txt.gz")
    arguments = parser.parse_args()
    if arguments.ranks > 1 and "RANK" not in os.environ:
        sys.exit(start_ranks(arguments.ranks))
    if arguments.hook and arguments.ranks == 1:
        parser.error("--hook needs --ranks 2 or more")
    rank, ranks = int(os.environ.get("RANK", "0")), arguments.ranks
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    text, unseen = read_text(arguments.data)
    model = plain = Gpt()
    initialize(plain)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = distribute(plain, "ddp")
    sent = send_by(arguments.hook, model) if arguments.hook else None
    optimizer = build_optimizer("gpt", model, False)
    order = epochs(text, torch.Generator().manual_seed(arguments.seed))

    start = time.perf_counter()
    for step in range(arguments.steps):
        batch = [next(order) for _ in range(arguments.batch_size)][rank::ranks]
        train_step(model, optimizer, *windows(text, batch), learning_rate(step, arguments.steps))
    seconds = time.perf_counter() - start
    result = loss_on(plain, unseen, rank, ranks, 16)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "steps": arguments.steps, "train_s": seconds,
                          "bytes_per_step": sent() if sent else None, "eval_loss": result}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
