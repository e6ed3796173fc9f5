"""Times training steps of a torchvision model in PyTorch: one mode a process, one JSON line on stdout.

usage: torch_train.py MODEL BATCH STEPS {eager|compile} {contiguous|channels_last} THREADS
SGD with momentum on random images, cross entropy; the loss is read back each step, as a training script does.
"""
import json
import resource
import statistics
import sys
import time

import torch
import torchvision

name, batch, steps, mode, layout, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6])
torch.set_num_threads(threads)
torch.manual_seed(0)


class Block(torch.nn.Module):
    """A block of the CIFAR ResNets of He et al. 2015, with option-A shortcuts."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.pad = (channels - channels_in) // 2
        self.stride = stride

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1 or self.pad:
            x = torch.nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return torch.relu(y + x)


def cifar_resnet(depth):
    layers = [torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    channels_in = 16
    for channels in (16, 32, 64):
        for i in range((depth - 2) // 6):
            layers.append(Block(channels_in, channels, 2 if i == 0 and channels > 16 else 1))
            channels_in = channels
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))


if name.startswith("cifar_resnet"):
    model, size, classes = cifar_resnet(int(name[len("cifar_resnet"):])), 32, 10
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
