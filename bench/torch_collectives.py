#!/usr/bin/env python3
"""All-reduce over Gloo, as PyTorch has it: the neighbour of bench/collectives. collectives_vs_peers.sh runs both in turns.

    python3 torch_collectives.py RANK WORLD_SIZE FILE SIZE...      FILE: a name that does not exist yet, for the ranks to meet
    ... SIZE... --deepspeed SO      instead of Gloo, DeepSpeed's kernels for shared memory: the script builds SO

Sizes are bytes of float32. Measured as in collectives.c: a sample is some calls in a row after one that is not counted;
its value is the slowest rank's time per call. Rank 0 prints "SIZE P50" with P50 in microseconds. A wrong sum ends the run.
"""
import importlib.util
import statistics
import sys
import time

import torch
import torch.distributed as dist

BUDGET = 0.5  # seconds per size
MAX_SAMPLES = 100


def load_deepspeed(path, rank, world_size):
    """Its sum of all ranks, in place. It reads LOCAL_SIZE, MASTER_ADDR and MASTER_PORT."""
    spec = importlib.util.spec_from_file_location("deepspeed_shm_comm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize(world_size, rank)
    return torch.ops.deepspeed.inference_all_reduce_


def seconds_per_call(all_reduce, buffer, calls):
    """One sample, as the slowest rank saw it."""
    dist.barrier()
    all_reduce(buffer)
    start = time.perf_counter()
    for _ in range(calls):
        all_reduce(buffer)
    slowest = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def check_sum(all_reduce, rank, world_size, count):
    """Small integers, which float32 adds exactly."""
    buffer = torch.arange(count, dtype=torch.float32) % 1000 + rank
    all_reduce(buffer)
    expected = (torch.arange(count, dtype=torch.float32) % 1000) * world_size + world_size * (world_size - 1) // 2
    if not torch.equal(buffer, expected):
        sys.exit(f"torch_collectives.py: rank {rank}: the sum of {count} elements is wrong")


def main():
    rank, world_size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    sizes, all_reduce = sys.argv[4:], dist.all_reduce
    if "--deepspeed" in sizes:
        all_reduce = load_deepspeed(sizes[-1], rank, world_size)
        sizes = sizes[:-2]
    for size in map(int, sizes):
        count = size // 4
        check_sum(all_reduce, rank, world_size, count)
        buffer = torch.zeros(count)
        first = seconds_per_call(all_reduce, buffer, 1)
        calls = max(1, min(200, int(BUDGET / 10 / first)))
        samples = max(5, min(MAX_SAMPLES, int(BUDGET / (calls * first))))
        times = [seconds_per_call(all_reduce, buffer, calls) for _ in range(samples)]
        if rank == 0:
            print(size, statistics.median(times) * 1e6, flush=True)
    dist.barrier()


main()
