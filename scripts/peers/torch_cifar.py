"""Trains a CIFAR ResNet in PyTorch with the settings and the meanings of a Galley recipe; called by scripts/accuracy.

usage: torch_cifar.py SETTINGS_JSON: {train, test (tar or folder), depth, classes, epochs, batch, lr, momentum, weight_decay, nesterov,
padding, mean, std, seed, threads, state, weights}. One JSON line an epoch on stdout. `state` is saved after each epoch and continued from;
`weights` gets the final tensors.

As in Galley: batches run on into the next epoch; the rate of update k of T is lr (1 + cos(pi (k-1)/T)) / 2; crop and flip act on u8 pixels,
padded with 0, before 1/255 and normalisation; weight decay meets every parameter; a validation after the first step at or past an epoch's end.
"""
import json
import math
import os
import pathlib
import sys
import tarfile
import time

import safetensors.torch
import torch
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_jpeg

from cifar_resnet import CifarResNet

how = json.loads(sys.argv[1])
torch.set_num_threads(how["threads"])


def members(path):
    """(class, bytes) of every image of a tar or folder whose files lie in folders named by class."""
    if os.path.isdir(path):
        for file in sorted(pathlib.Path(path).glob("*/*.jp*g")):
            yield file.parent.name, file.read_bytes()
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                yield pathlib.PurePath(member.name).parent.name, tar.extractfile(member).read()


def load(path):
    names, images = [], []
    for name, data in members(path):
        names.append(name)
        images.append(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))
    classes = sorted(set(names))
    assert len(classes) == how["classes"], f"{path} has {len(classes)} classes"
    return torch.stack(images), torch.tensor([classes.index(name) for name in names])


mean = torch.tensor(how["mean"]).view(1, 3, 1, 1)
std = torch.tensor(how["std"]).view(1, 3, 1, 1)


def as_input(pixels):
    return ((pixels.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


images, labels = load(how["train"])
test_images, test_labels = load(how["test"])
count, size, pad = len(images), images.shape[-1], how["padding"]
padded = F.pad(images, (pad, pad, pad, pad))
permutations = {}


def sample(position):
    """Which image comes at this position since the start of training."""
    epoch = position // count
    if epoch not in permutations:
        permutations[epoch] = torch.randperm(count, generator=torch.Generator().manual_seed(how["seed"] * 1_000_003 + epoch)).tolist()
        permutations.pop(epoch - 2, None)
    return permutations[epoch][position % count]


def batch_of(step):
    chosen = torch.tensor([sample((step - 1) * how["batch"] + i) for i in range(how["batch"])])
    random = torch.Generator().manual_seed(how["seed"] * 7_368_787 + step)
    n = len(chosen)
    rows = torch.randint(0, 2 * pad + 1, (n, 1), generator=random) + torch.arange(size)
    columns = torch.randint(0, 2 * pad + 1, (n, 1), generator=random) + torch.arange(size)
    columns = torch.where(torch.rand((n, 1), generator=random) < 0.5, columns.flip(1), columns)
    pixels = padded[chosen[:, None, None, None], torch.arange(3)[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]]
    return as_input(pixels), labels[chosen]


def evaluate(model):
    model.eval()
    loss = right = 0
    with torch.inference_mode():
        for pixels, target in zip(test_images.split(500), test_labels.split(500)):
            logits = model(as_input(pixels))
            loss += F.cross_entropy(logits, target, reduction="sum").item()
            right += (logits.argmax(1) == target).sum().item()
    model.train()
    return loss / len(test_labels), 100 * right / len(test_labels)


torch.manual_seed(how["seed"])
model = CifarResNet(how["depth"], how["classes"]).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=how["lr"], momentum=how["momentum"], weight_decay=how["weight_decay"], nesterov=how["nesterov"])
per_epoch = count / how["batch"]
total = math.ceil(how["epochs"] * per_epoch - 1e-9)
step, curve, wall = 0, [], 0.0
if os.path.exists(how["state"]):
    state = torch.load(how["state"])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step, curve, wall = state["step"], state["curve"], state["wall_s"]
    for row in curve:
        print(json.dumps(row), flush=True)
began = time.monotonic() - wall
losses = []
while step < total:
    step += 1
    x, target = batch_of(step)
    for group in optimizer.param_groups:
        group["lr"] = how["lr"] * (1 + math.cos(math.pi * (step - 1) / total)) / 2
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if math.floor(step / per_epoch) > math.floor((step - 1) / per_epoch) or step == total:
        test_loss, top1 = evaluate(model)
        curve.append({"epoch": len(curve) + 1, "step": step, "train_loss": sum(losses) / len(losses), "loss": test_loss, "top1": top1})
        losses = []
        wall = time.monotonic() - began
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "curve": curve, "wall_s": wall}, how["state"] + ".new")
        os.replace(how["state"] + ".new", how["state"])
        print(json.dumps(curve[-1]), flush=True)
safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, how["weights"])
print(json.dumps({"wall_s": wall, "steps": total, "train_images": count, "test_images": len(test_labels), "version": f"PyTorch {torch.__version__}"}), flush=True)
