"""Trains the recipe shakespeare_gpt in PyTorch; called by scripts/gpt-accuracy.

usage: torch_shakespeare.py TEXT STEPS EVERY SEED THREADS
One JSON line after every EVERY steps: {step, loss (of all validation windows)}.

As in Galley: consecutive windows of 64 characters, the last tenth for validation; batches of 12 extend into the next epoch.
"""
import json
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

from gpt_model import GPT

LENGTH, BATCH, RATE, WARM = 64, 12, 0.001, 100
path, steps, every, seed, threads = sys.argv[1], *map(int, sys.argv[2:6])
torch.set_num_threads(threads)
torch.manual_seed(seed)
text = open(path, encoding="utf-8").read()
vocabulary = {character: number for number, character in enumerate(sorted(set(text)))}
ids = torch.tensor([vocabulary[character] for character in text])
windows = (len(ids) - 1) // LENGTH
inputs, labels = ids[:windows * LENGTH].view(windows, LENGTH), ids[1:windows * LENGTH + 1].view(windows, LENGTH)
count = windows * 9 // 10
model = GPT(4, 4, 128, len(vocabulary), positions=LENGTH, bias=False)
norms = [parameter for name, parameter in model.named_parameters() if parameter.ndim == 1]
others = [parameter for name, parameter in model.named_parameters() if parameter.ndim > 1]
optimizer = torch.optim.AdamW([{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0}], lr=RATE, betas=(0.9, 0.99))


def loss_of(chosen, reduction="mean"):
    return F.cross_entropy(model(inputs[chosen]).flatten(0, 1), labels[chosen].flatten(), reduction=reduction)


@torch.inference_mode()
def evaluate():
    total = sum(loss_of(chosen, "sum").item() for chosen in torch.arange(count, windows).split(256))
    return total / labels[count:].numel()


order, taken = torch.randperm(count), 0
for step in range(steps):
    if taken + BATCH > count:
        order, taken = torch.cat([order[taken:], torch.randperm(count)]), 0
    chosen, taken = order[taken:taken + BATCH], taken + BATCH
    factor = 0.01 + 0.99 * step / WARM if step < WARM else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - WARM) / (steps - WARM))) / 2
    for group in optimizer.param_groups:
        group["lr"] = RATE * factor
    optimizer.zero_grad(set_to_none=True)
    loss_of(chosen).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if (step + 1) % every == 0:
        print(json.dumps({"step": step + 1, "loss": evaluate(), "version": f"PyTorch {torch.__version__}"}), flush=True)
