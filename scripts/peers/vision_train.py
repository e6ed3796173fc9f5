"""Times training steps of a vision model in PyTorch: one mode per process. usage: vision_train.py MODEL BATCH STEPS MODE THREADS
MODE: contiguous or channels_last. SGD with momentum on random images; detectors: three boxes each."""
import json
import resource
import sys
import time

import torch

from vision_models import DETECTORS, SIZES, build

name, batch, steps, layout, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
torch.set_num_threads(threads)
torch.set_flush_denormal(True)
model = build(name, train=True).train()
side = SIZES[name][0]
images = torch.rand(batch, 3, side, side)
if layout == "channels_last":
    model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
corner = torch.rand(batch, 3, 2) * side / 2
targets = [{"boxes": torch.cat([corner[i], corner[i] + 20 + torch.rand(3, 2) * side / 3], 1), "labels": torch.randint(1, 91, (3,))}
           for i in range(batch)]
classes = torch.randint(0, 21, (batch, side, side))


def loss_of():
    if name in DETECTORS:
        return sum(model(list(images), targets).values())
    result = model(images)
    loss = torch.nn.functional.cross_entropy
    return loss(result["out"], classes) + 0.5 * loss(result["aux"], classes)


before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
times = []
for step in range(steps + 2):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of()
    loss.backward()
    optimizer.step()
    loss.item()
    times.append((time.perf_counter() - start) * 1e3)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"times_ms": times[2:], "peak_bytes": peak, "grown_bytes": peak - before, "version": f"PyTorch {torch.__version__}"}))
