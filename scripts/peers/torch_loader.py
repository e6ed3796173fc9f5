"""Times torchvision's DataLoader on a folder of images: milliseconds of each batch.

usage: torch_loader.py FOLDER BATCH WORKERS BATCHES {pillow|tensor}
pillow: the usual transforms on Pillow's images; tensor: decode_jpeg and the v2 transforms on u8 tensors.
"""
import sys
import time

import torch
import torchvision
from torchvision.transforms import v2

from timing import report

folder, batch, workers, batches, way = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
if way == "pillow":
    from torchvision import transforms

    work = transforms.Compose(
        [transforms.RandomResizedCrop(224),
         transforms.RandomHorizontalFlip(),
         transforms.ToTensor(),
         transforms.Normalize(mean, std)])
    images = torchvision.datasets.ImageFolder(folder, work)
else:
    work = v2.Compose([
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std)
    ])
    decode = lambda path: torchvision.io.decode_jpeg(torchvision.io.read_file(path), torchvision.io.ImageReadMode.RGB)
    images = torchvision.datasets.ImageFolder(folder, work, loader=decode)
first = 4  # batches whose times start-up and prefetching distort
sampler = torch.utils.data.RandomSampler(images, replacement=True, num_samples=(first + batches) * batch)
loader = torch.utils.data.DataLoader(images, batch, sampler=sampler, num_workers=workers)
times, begin = [], time.perf_counter()
for pixels, labels in loader:
    now = time.perf_counter()
    times.append((now - begin) * 1e3)
    begin = now
assert pixels.shape == (batch, 3, 224, 224)
report(times[first:], f"torchvision {torchvision.__version__}")
