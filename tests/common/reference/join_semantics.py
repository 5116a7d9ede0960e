#!/usr/bin/env python3
"""What PyTorch's Join divides by: two processes with 12 and 4 samples, 4 per step, against one process that divides the
sum of gradients as --join initial and --join do. Needs PyTorch; run by hand, see notes/loss_and_mean.md.
"""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.join import Join

BATCH, FIRST, END = 4, [0, 12], [12, 16]  # samples FIRST[rank] to END[rank] - 1 are the rank's own


def model_and_data():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    samples = torch.Generator().manual_seed(5)
    inputs = torch.randn(16, 3, generator=samples).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), inputs, torch.randn(16, 2, generator=samples).double()


def sum_of_losses(model, inputs, targets):
    return ((model(inputs) - targets) ** 2).mean(1).sum()


def one_process(initial):
    model, optimizer, inputs, targets = model_and_data()
    for step in range(3):
        mine = []
        for rank in range(2):
            start = FIRST[rank] + step * BATCH
            mine += range(start, min(start + BATCH, END[rank]))
        optimizer.zero_grad()
        (sum_of_losses(model, inputs[mine], targets[mine]) / (2 * BATCH if initial else len(mine))).backward()
        optimizer.step()
    return model.weight.detach()


def rank_main(rank, initial, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model, optimizer, inputs, targets = model_and_data()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    with Join([ddp], divide_by_initial_world_size=initial):
        for start in range(FIRST[rank], END[rank], BATCH):
            part = slice(start, start + BATCH)
            optimizer.zero_grad()
            (sum_of_losses(ddp, inputs[part], targets[part]) / BATCH).backward()
            optimizer.step()
    difference = (model.weight - one_process(initial)).abs().max().item()
    line = f"rank {rank}, divide_by_initial_world_size={initial}: largest difference {difference:.1e}\n"
    print(line, end="", flush=True) # print() would write the line's end on its own, after the other rank's line perhaps
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (True, 29611), nprocs=2)
    mp.spawn(rank_main, (False, 29612), nprocs=2)
