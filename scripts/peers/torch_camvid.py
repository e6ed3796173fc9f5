"""Trains LR-ASPP on MobileNetV3 from random weights on CamVid in torchvision; called by scripts/segmentation-curves.

usage: torch_camvid.py SETTINGS_JSON: {data, epochs, batch, lr, weight_decay, mean, std, classes, seed, threads, initial}. One JSON line per
epoch on stdout, and a last one. `initial` receives the random weights before the first step, from which Galley begins too. With the key
`settle`, a file of weights: no training; prints the figures of val with running statistics that are means over the training images, because
those of a short training with a momentum of 0.01 lag behind the weights.

As in Galley: the rate of update k of T is lr (1 + cos(pi (k-1)/T)) / 2, all parameters have weight decay, images are flipped with
probability 1/2, pixels of the class after the last one do not count, and miou is the mean of the classes that occur.
"""
import json
import math
import pathlib
import sys
import time

import numpy
import safetensors.torch
import torch
import torchvision
from PIL import Image
from torch.nn import functional as F

how = json.loads(sys.argv[1])
CLASSES = how["classes"]
torch.set_num_threads(how["threads"])


def load(split):
    folder = pathlib.Path(how["data"])
    pairs = [(path, folder / f"{split}annot" / f"{path.stem}.png") for path in sorted((folder / split).iterdir())]
    images, masks = (torch.from_numpy(numpy.stack([numpy.asarray(Image.open(pair[part])) for pair in pairs])) for part in (0, 1))
    mean, std = (torch.tensor(how[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    return ((images.permute(0, 3, 1, 2) / 255 - mean) / std).contiguous(memory_format=torch.channels_last), masks.long()


def evaluate(images, masks):
    model.eval()
    counts, total = torch.zeros(CLASSES, CLASSES), 0.0
    with torch.inference_mode():
        for x, target in zip(images.split(how["batch"]), masks.split(how["batch"])):
            scores, counted = model(x)["out"], target < CLASSES
            total += F.cross_entropy(scores, target, ignore_index=CLASSES, reduction="sum").item()
            cells = target[counted] * CLASSES + scores.argmax(1)[counted]
            counts += torch.bincount(cells, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    model.train()
    either = counts.sum(0) + counts.sum(1) - counts.diag()
    return {"loss": total / counts.sum().item(), "miou": 100 * (counts.diag() / either)[either > 0].mean().item(),
            "pixel_accuracy": 100 * (counts.diag().sum() / counts.sum()).item()}


def settled():
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # plain means
    with torch.no_grad():
        for x in images.split(how["batch"]):
            model(x)
    return evaluate(*val)


torch.manual_seed(how["seed"])
model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
if "settle" in how:
    model.load_state_dict(safetensors.torch.load_file(how["settle"]))
    model, images, val = model.to(memory_format=torch.channels_last).train(), load("train")[0], load("val")
    print(json.dumps(settled()))
    sys.exit()
safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, how["initial"])
model = model.to(memory_format=torch.channels_last).train()
images, masks = load("train")
val = load("val")
optimizer = torch.optim.AdamW(model.parameters(), lr=how["lr"], weight_decay=how["weight_decay"])
per_epoch = len(images) // how["batch"]
total, step, began = how["epochs"] * per_epoch, 0, time.monotonic()
for epoch in range(how["epochs"]):
    losses = []
    for chosen in torch.randperm(len(images)).split(how["batch"])[:per_epoch]:
        flips = torch.rand(len(chosen)) < 0.5
        x = torch.where(flips[:, None, None, None], images[chosen].flip(3), images[chosen])
        target = torch.where(flips[:, None, None], masks[chosen].flip(2), masks[chosen])
        for group in optimizer.param_groups:
            group["lr"] = how["lr"] * (1 + math.cos(math.pi * step / total)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last))["out"], target, ignore_index=CLASSES)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
    print(json.dumps({"epoch": epoch + 1, "train_loss": sum(losses) / len(losses), **evaluate(*val)}), flush=True)
wall = time.monotonic() - began
print(json.dumps({"wall_s": wall, "test": evaluate(*load("test")), "settled": settled(),
                  "version": f"torchvision {torchvision.__version__}"}), flush=True)
