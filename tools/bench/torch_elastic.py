#!/usr/bin/env python3
"""bench/torch_train.py's training as torchrun restarts it: it saves every K steps, and goes on from what was saved.

    python3 -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 50 bench/torch_elastic.py --save FILE

Rank 0 prints a line when it has started, imported PyTorch, joined the process group, made the optimizer, and read the
checkpoint, and one for each step. tools/bench/restarts.sh notes when each line comes.
"""
import argparse
import os

say = print if os.environ["RANK"] == "0" else lambda *words, flush: None
say("python runs", flush=True)

import torch

from torch_step import Gpt, build_optimizer, distribute
from torch_train import epochs, initialize, learning_rate, read_text, train_step, windows

say("torch is imported", flush=True)


def save(path, step, plain, optimizer):
    """To a new file, which then replaces the old one: a kill leaves the one or the other."""
    torch.save({"step": step, "model": plain.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", required=True)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--batch-size", type=int, default=8, help="of all ranks together")
    parser.add_argument("--data", default="/usr/share/doc/jargon-text/jargon.txt.gz")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    say("the group is there", flush=True)
    text, _ = read_text(arguments.data)
    plain = Gpt()
    initialize(plain)
    optimizer = build_optimizer("gpt", plain, False)
    say("the optimizer is there", flush=True)  # its first use imports more of PyTorch
    first = 0
    if os.path.exists(arguments.save):
        state = torch.load(arguments.save)
        first = state["step"]
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = distribute(plain, "ddp")
    order = epochs(text, torch.Generator().manual_seed(42))
    for _ in range(first * arguments.batch_size):
        next(order)
    say("goes on from step", first, flush=True)
    for step in range(first, arguments.steps):
        batch = [next(order) for _ in range(arguments.batch_size)][rank::ranks]
        loss = train_step(model, optimizer, *windows(text, batch), learning_rate(step, arguments.steps))
        say(f"step {step + 1}, loss {loss.item():.3f}", flush=True)
        if rank == 0 and (step + 1) % arguments.save_every == 0:
            save(arguments.save, step + 1, plain, optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
