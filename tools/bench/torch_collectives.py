#!/usr/bin/env python3
"""All-reduce over Gloo, as PyTorch has it, beside tools/bench/collectives. collectives_vs_peers.sh runs both in turns.

    python3 torch_collectives.py RANK WORLD_SIZE MEETING FRESH SIZE...
    ... SIZE... --deepspeed SO      instead of Gloo, DeepSpeed's kernels for shared memory: the script builds SO

MEETING: the name of a file that does not exist yet, for the ranks to meet; MEETING.arrivals is made beside it.
FRESH: fresh.c as a shared library. Sizes are bytes of float32. Measured as in collectives.c, with both kinds of
samples. Rank 0 prints "SIZE FRESH LEFT": the medians in microseconds per call with data that each rank has just
written, and with data as the call before left it. A wrong sum ends the run.
"""
import ctypes
import importlib.util
import mmap
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

BUDGET = 0.25  # seconds per size, with what is not timed
MAX_SAMPLES = 100
ARRIVAL = 64  # FRESH_ARRIVAL


def load_deepspeed(path, rank, world_size):
    """Its sum of all ranks, in place. It reads LOCAL_SIZE, MASTER_ADDR and MASTER_PORT."""
    spec = importlib.util.spec_from_file_location("deepspeed_shm_comm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize(world_size, rank)
    return torch.ops.deepspeed.inference_all_reduce_


def slowest(seconds):
    result = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(result, op=dist.ReduceOp.MAX)
    return result.item()


class Fresh:
    """fresh.h, for this rank."""

    def __init__(self, path, meeting, rank, world_size):
        self.fresh, self.rank, self.world_size, self.number = ctypes.CDLL(path), rank, world_size, 0
        self.fresh.fresh_wrong.restype = ctypes.c_long
        with open(f"{meeting}.arrivals", "a+b") as file:
            file.truncate(ARRIVAL * world_size)  # zeros
            self.memory = mmap.mmap(file.fileno(), ARRIVAL * world_size)
        self.arrivals = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        meeting_time = self.fresh.fresh_seconds_of_a_meeting
        meeting_time.restype = ctypes.c_double
        seconds = meeting_time(self.arrivals, rank, world_size)
        if rank == 0:
            print(f"# a meeting of all ranks in memory takes {1e6 * seconds:.2f} us")

    def call(self, all_reduce, buffer):
        """The seconds of one call whose data each rank has just written."""
        values, count = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(len(buffer))
        self.number += 1
        self.fresh.fresh_write(values, count, self.rank, self.number)
        self.fresh.fresh_meet(self.arrivals, self.rank, self.world_size)
        start = time.perf_counter()
        all_reduce(buffer)
        seconds = time.perf_counter() - start
        self.fresh.fresh_meet(self.arrivals, self.rank, self.world_size)
        if self.fresh.fresh_wrong(values, ctypes.c_size_t(0), count, 0, self.world_size, self.number) != 0:
            sys.exit(f"torch_collectives.py: rank {self.rank}: the sum of {len(buffer)} elements is wrong")
        return seconds

    def sample(self, all_reduce, buffer, calls):
        """As the slowest rank saw it. A first call is not counted, in both kinds of samples."""
        self.call(all_reduce, buffer)
        return slowest(sum(self.call(all_reduce, buffer) for _ in range(calls)) / calls)


def left_sample(all_reduce, buffer, calls):
    buffer.zero_()
    dist.barrier()
    all_reduce(buffer)
    start = time.perf_counter()
    for _ in range(calls):
        all_reduce(buffer)
    return slowest((time.perf_counter() - start) / calls)


def main():
    rank, world_size, meeting, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    processors = [None] * world_size
    dist.all_gather_object(processors, sorted(os.sched_getaffinity(0)))
    if rank == 0:
        print("# processors that rank 0, 1, ... may run on:", ", ".join(" ".join(map(str, p)) for p in processors))
    sizes, all_reduce, fresh = sys.argv[5:], dist.all_reduce, Fresh(library, meeting, rank, world_size)
    if "--deepspeed" in sizes:
        all_reduce = load_deepspeed(sizes[-1], rank, world_size)
        sizes = sizes[:-2]
    for size in map(int, sizes):
        buffer = torch.zeros(size // 4)
        start = time.perf_counter()
        first, whole = fresh.sample(all_reduce, buffer, 3), slowest(time.perf_counter() - start) / 4
        calls = max(1, int(min(1e-3 / first, BUDGET / 10 / whole, 200)))
        start = time.perf_counter()
        fresh.sample(all_reduce, buffer, calls)
        left_sample(all_reduce, buffer, calls)
        samples = max(5, min(MAX_SAMPLES, int(BUDGET / slowest(time.perf_counter() - start))))
        times = [(fresh.sample(all_reduce, buffer, calls), left_sample(all_reduce, buffer, calls))
                 for _ in range(samples)]
        if rank == 0:
            print(size, *(statistics.median(kind) * 1e6 for kind in zip(*times)), flush=True)
    dist.barrier()


main()
