#!/usr/bin/env python3
"""Makes segmentation.json in this folder: PyTorch's results for a few logits and masks.

    python3 tests/golden/tasks/make.py        (needs torch)

  logits [3,5,4,6], labels [3,4,6] with ignored pixels (-100); class 3 occurs in neither labels nor predictions, class 4 only in predictions
  losses    torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100), reduction none and mean, in float64
  gradient  of the mean
  confusion torch.bincount over (label, prediction) of the pixels that count, as torchvision's reference script for segmentation
  miou      percent: the mean of intersection over union of the classes that occur in labels or predictions
  pixel_accuracy  percent
"""
import json
import pathlib

import torch
from torch.nn import functional as F

here = pathlib.Path(__file__).resolve().parent
N, C, H, W = 3, 5, 4, 6
torch.manual_seed(5)
logits = (torch.randn(N, C, H, W, dtype=torch.float64) * 1.5).float().double()
logits[:, 3] -= 20
labels = torch.randint(0, 3, (N, H, W))
for n, y, x in [(0, 0, 0), (0, 3, 5), (1, 2, 2), (2, 1, 4), (2, 3, 0)]:
    labels[n, y, x] = -100
# Most pixels are correct, as after training.
right = torch.rand(N, H, W) < 0.6
logits.scatter_add_(1, labels.clamp(min=0).unsqueeze(1), (right * 4.0).double().unsqueeze(1))
logits.requires_grad_()
mean = F.cross_entropy(logits, labels, ignore_index=-100)
mean.backward()
predictions = logits.detach().argmax(1)
counted = labels >= 0
confusion = torch.bincount(C * labels[counted] + predictions[counted], minlength=C * C).reshape(C, C)
either = confusion.sum(0) + confusion.sum(1) - confusion.diag()
iou = confusion.diag().double() / either
golden = {
    "torch": torch.__version__.split("+")[0],
    "shape": [N, C, H, W],
    "logits": logits.detach().flatten().tolist(),
    "labels": labels.flatten().tolist(),
    "losses": F.cross_entropy(logits, labels, ignore_index=-100, reduction="none").detach().flatten().tolist(),
    "mean": mean.item(),
    "gradient": logits.grad.flatten().tolist(),
    "confusion": confusion.tolist(),
    "miou": 100 * iou[either > 0].mean().item(),
    "pixel_accuracy": 100 * confusion.diag().sum().item() / confusion.sum().item(),
}
(here / "segmentation.json").write_text(json.dumps(golden) + "\n")
