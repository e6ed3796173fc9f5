"""Trains a CIFAR ResNet in PyTorch with the settings and rules of a Galley recipe; called by scripts/accuracy.

usage: torch_cifar.py SETTINGS_JSON: {train, test (tar or folder), depth, classes, epochs, batch, lr, momentum, weight_decay, nesterov,
padding, mean, std, seed, threads, state, weights}. One JSON line per epoch on stdout. `state` is saved after each epoch, and a later call
continues from it; `weights` receives the final tensors.

As in Galley: batches extend into the next epoch; the rate of update k of T is lr (1 + cos(pi (k-1)/T)) / 2; crop and flip are applied to u8
pixels, padded with 0, before 1/255 and normalization; all parameters have weight decay; validation follows the first step at or after the
end of an epoch.
"""
import json
import math
import os
import sys
import time

import safetensors.torch
import torch
from torch.nn import functional as F

from cifar_data import Normalizer, evaluate, load
from cifar_resnet import CifarResNet

how = json.loads(sys.argv[1])
torch.set_num_threads(how["threads"])

as_input = Normalizer(how["mean"], how["std"])
images, labels = load(how["train"], how["classes"])
test_images, test_labels = load(how["test"], how["classes"])
count, size, pad = len(images), images.shape[-1], how["padding"]
padded = F.pad(images, (pad, pad, pad, pad))
permutations = {}


def sample(position):
    """The index of the image at this position since the start of training."""
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


torch.manual_seed(how["seed"])
model = CifarResNet(how["depth"], how["classes"]).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(),
                            lr=how["lr"],
                            momentum=how["momentum"],
                            weight_decay=how["weight_decay"],
                            nesterov=how["nesterov"])
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
        model.eval()
        test_loss, top1 = evaluate(model, test_images, test_labels, as_input)
        model.train()
        curve.append({"epoch": len(curve) + 1, "step": step, "train_loss": sum(losses) / len(losses), "loss": test_loss, "top1": top1})
        losses = []
        wall = time.monotonic() - began
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "curve": curve, "wall_s": wall},
                   how["state"] + ".new")
        os.replace(how["state"] + ".new", how["state"])
        print(json.dumps(curve[-1]), flush=True)
safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, how["weights"])
print(json.dumps(
    {"wall_s": wall, "steps": total, "train_images": count, "test_images": len(test_labels), "version": f"PyTorch {torch.__version__}"}),
      flush=True)
