#!/usr/bin/env python3
"""A small GPT in PyTorch that goes on from its last checkpoint, for torchrun to start again. See restart_vs_torchrun.sh.

    torchrun --nproc-per-node 4 --max-restarts 100 bench/torch_elastic.py FILE     rank 0 saves to FILE in every step

FILE.step has the number of the steps in it. FILE is replaced as a whole.
"""
import os
import sys

import torch

from torch_step import Gpt, build_optimizer

STEPS, BATCH, CONTEXT = 100000, 8, 32


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
    os.replace(path + ".new", path)
    with open(path + ".step.new", "w") as file:
        file.write("%d\n" % step)
    os.replace(path + ".step.new", path + ".step")


def main():
    path = sys.argv[1]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(42)
    model = Gpt(layers=2, width=64, context=CONTEXT)
    optimizer = build_optimizer("gpt", model, False)
    first = 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    text = torch.randint(256, (BATCH // ranks, CONTEXT + 1))
    for step in range(first, STEPS):
        loss = parallel(text[:, :-1], text[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0:
            save(path, model, optimizer, step + 1)


if __name__ == "__main__":
    main()
