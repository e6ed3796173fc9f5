"""Times training steps of a torchvision model in PyTorch: one mode per process, one JSON line on stdout.

usage: torch_train.py MODEL BATCH STEPS {eager|compile} {contiguous|channels_last} {f32|bf16} THREADS
bf16: forward pass and loss with autocast. SGD with momentum on random images, cross entropy; each step reads the loss, as in training
scripts.
"""
import json
import resource
import statistics
import sys
import time

import torch
import torchvision

from cifar_resnet import CifarResNet

name, batch, steps, mode, layout, precision, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:7], int(sys.argv[7])
torch.set_num_threads(threads)
torch.manual_seed(0)

if name.startswith("cifar_resnet"):
    model, size, classes = CifarResNet(int(name[len("cifar_resnet"):])), 32, 10
else:
    model, size, classes = getattr(torchvision.models, name)(), 224, 1000
model.train()
data = torch.randn(batch, 3, size, size)
target = torch.randint(0, classes, (batch,))
if layout == "channels_last":
    model = model.to(memory_format=torch.channels_last)
    data = data.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
forward = torch.compile(model) if mode == "compile" else model
times = []
for step in range(steps + 3):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = torch.nn.functional.cross_entropy(forward(data), target)
    loss.backward()
    optimizer.step()
    loss.item()
    times.append((time.perf_counter() - start) * 1e3)
print(json.dumps({
    "median_ms": statistics.median(times[3:]),
    "times_ms": times[3:],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "version": torch.__version__,
}))
