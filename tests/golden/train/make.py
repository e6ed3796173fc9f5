#!/usr/bin/env python3
"""Makes the files of this folder: a model that PyTorch trained, PyTorch's results for it, and five further training steps.

    python3 tests/golden/train/make.py        (needs torch, torchvision, safetensors)

  weights.safetensors          torchvision's mobilenet_v3_small, width 0.1, after 600 steps on random patterns; saved as users save it
  train.safetensors            `input` u8 [40,3,48,48] and `label` [40]: five batches of eight
  val.safetensors              24 samples
  sgd, adamw .safetensors      parameters and buffers after five steps from the weights on those batches
  expected.json                loss, top-1 and logits on val, the losses of the steps, and the deviation of float32

All results are computed in float64 from the float32 weights; `rounding` is the deviation of the same computation in float32: the scale
by which another float32 program may differ.
"""
import json
import pathlib
import platform

import safetensors
import safetensors.torch
import torch
import torchvision
from torch.nn import functional as F

here = pathlib.Path(__file__).resolve().parent
MODEL = dict(num_classes=10, width_mult=0.1, dropout=0.0)
SIZE, BATCH, STEPS = 48, 8, 5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.99), eps=1e-5, weight_decay=0.05),
}
torch.set_num_threads(1)
torch.manual_seed(0)
prototypes = F.interpolate(torch.randn(10, 3, 6, 6), size=SIZE, mode="bicubic")


def draw(count):
    """Patterns of ten classes in noise, as u8 images."""
    labels = torch.randint(0, 10, (count,))
    strength = 0.05 + 0.35 * torch.rand(count, 1, 1, 1)
    images = 0.5 + 0.15 * (strength * prototypes[labels] + torch.randn(count, 3, SIZE, SIZE) + 0.5 * torch.randn(count, 3, 1, 1))
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels


def as_input(pixels, dtype):
    mean, std = (torch.tensor(values, dtype=dtype).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (pixels.to(dtype) / 255 - mean) / std


class ExactHardsigmoid(torch.nn.Module):
    """PyTorch's backward of hardsigmoid multiplies by 1/6 in float32 even in double, an error of 3e-8."""

    def forward(self, x):
        return F.relu6(x + 3) / 6


def build(state=None, dtype=torch.float32):
    model = torchvision.models.mobilenet_v3_small(**MODEL)
    if state is not None:
        model.load_state_dict(state)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, torch.nn.Hardsigmoid):
                    setattr(module, name, ExactHardsigmoid())
    return model.to(dtype)


def pretrain():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(600):
        pixels, labels = draw(32)
        optimizer.zero_grad()
        F.cross_entropy(model(as_input(pixels, torch.float32)), labels).backward()
        optimizer.step()
    return model.state_dict()


def evaluate(state, pixels, labels, dtype):
    model = build(state, dtype).eval()
    with torch.no_grad():
        return model(as_input(pixels, dtype))


def train(state, pixels, labels, make_optimizer, dtype):
    model = build(state, dtype).train()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for x, target in zip(pixels.split(BATCH), labels.split(BATCH)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(as_input(x, dtype)), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


state = pretrain()
train_set, val_set = draw(STEPS * BATCH), draw(24)
safetensors.torch.save_file(state, here / "weights.safetensors")
for name, (pixels, labels) in {"train": train_set, "val": val_set}.items():
    safetensors.torch.save_file({"input": pixels, "label": labels}, here / f"{name}.safetensors")

logits = evaluate(state, *val_set, torch.float64)
loss = F.cross_entropy(logits, val_set[1])
single = evaluate(state, *val_set, torch.float32).double()
expected = {
    "versions": {
        "python": platform.python_version(), "torch": torch.__version__, "torchvision": torchvision.__version__,
        "safetensors": safetensors.__version__
    },
    "evaluate": {
        "loss": loss.item(),
        "top1": 100 * (logits.argmax(1) == val_set[1]).double().mean().item(),
        "losses": F.cross_entropy(logits, val_set[1], reduction="none").tolist(),
        "logits": logits.tolist(),
        "rounding": {"loss": abs(F.cross_entropy(single, val_set[1]) - loss).item(), "logits": (single - logits).abs().max().item()},
    },
}
for name, make_optimizer in OPTIMIZERS.items():
    losses, after = train(state, *train_set, make_optimizer, torch.float64)
    losses32, after32 = train(state, *train_set, make_optimizer, torch.float32)
    floats = [key for key, value in after.items() if value.is_floating_point()]
    moved = sum((after[key] - state[key].double()).square().sum().item() for key in floats) ** 0.5
    off = sum((after32[key].double() - after[key]).square().sum().item() for key in floats) ** 0.5
    expected[name] = {"losses": losses, "rounding": {"losses": [abs(a - b) for a, b in zip(losses, losses32)], "moved": off / moved}}
    safetensors.torch.save_file({key: value.float() if value.is_floating_point() else value for key, value in after.items()},
                                here / f"{name}.safetensors")
(here / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
print(json.dumps({key: {k: v for k, v in value.items() if k not in ("logits",)} for key, value in expected.items()}, indent=1))
