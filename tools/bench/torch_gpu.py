#!/usr/bin/env python3
"""PyTorch's training speed on one GPU, for lockstep's GPT models. tools/bench/gpu.sh runs it beside `train_cuda`.

    python3 tools/bench/torch_gpu.py --model gpt2 --precision bf16 --batch-size 16 [--compile]       prints one line of JSON

The same work as `train_cuda --model gpt|gpt2`: shapes, tied embeddings, GELU's tanh form, pre-layernorm, AdamW with decay
on matrices only, gradients clipped to norm 1. Written as one would write it for speed: fused attention, the fused AdamW,
autocast for bf16 (float32 master weights, as lockstep has them), no TF32 unless --tf32 asks for it (as in lockstep),
gradients set to None. It is given every advantage that lockstep does not take: its batches lie on the GPU already, the loss is
never read back, and the time is that of all steps together, without a stop in between.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

WARMUP_STEPS = 10

#        layers, heads, width, context, vocabulary, rows of the embedding
SHAPES = {"gpt": (4, 4, 256, 128, 256, 256), "gpt2": (12, 12, 768, 1024, 50257, 50304)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time_steps, width = x.shape
        split = (batch, time_steps, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(attended.transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, rows):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(rows, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        logits = F.linear(self.ln_f(self.h(x)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def optimizer_for(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(SHAPES), default="gpt2")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--compile", action="store_true", help="torch.compile, in its default mode")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in float32 matrix products")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch_gpu.py: this PyTorch sees no GPU")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32

    layers, heads, width, context, vocabulary, rows = SHAPES[arguments.model]
    model = Gpt(layers, heads, width, context, rows).cuda()
    optimizer = optimizer_for(model)
    parameters = sum(p.numel() for p in model.parameters())
    loss_of = torch.compile(model) if arguments.compile else model
    shape = (arguments.batch_size, context)
    batches = [(torch.randint(vocabulary, shape, device="cuda"), torch.randint(vocabulary, shape, device="cuda"))
               for _ in range(4)]

    def step(number):
        with torch.autocast("cuda", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = loss_of(*batches[number % len(batches)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for number in range(WARMUP_STEPS):
        step(number)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(arguments.steps):
        loss = step(number)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / arguments.steps
    if not torch.isfinite(loss):
        raise SystemExit(f"torch_gpu.py: the loss is {loss.item()}")
    print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "model": arguments.model,
                      "precision": arguments.precision, "compiled": arguments.compile, "tf32": arguments.tf32,
                      "batch_size": arguments.batch_size, "parameters": parameters, "step_ms": 1e3 * seconds,
                      "tokens_per_s": arguments.batch_size * context / seconds,
                      "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9}))


if __name__ == "__main__":
    main()
