"""Times training steps of a GPT in PyTorch: one mode per process, one JSON line on stdout.

usage: torch_gpt.py MODEL BATCH LENGTH STEPS {eager|compile} {installed|tuned} {f32|bf16} THREADS
AdamW, the gradient clipped to norm 1; each step reads the loss. tuned: fused AdamW; its caller also makes the C library keep freed memory
(text.TUNED). bf16: forward pass and loss with autocast.
"""
import sys
import time

import torch

from gpt_model import GPT, SIZES
from timing import report

name, batch, length, steps, mode, setting, precision, threads = sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:8], int(sys.argv[8])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = GPT(*SIZES[name])
ids = torch.randint(0, model.vocabulary, (batch, length + 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if setting == "tuned" else None)
forward = torch.compile(model) if mode == "compile" else model
times = []
for step in range(steps + 3):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = forward(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, model.vocabulary), ids[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
    times.append((time.perf_counter() - start) * 1e3)
report(times[3:], torch.__version__)
