"""Reads CIFAR-10's JPEGs as PyTorch tensors, by the rules of a Galley recipe."""
import os
import pathlib
import tarfile

import torch
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_jpeg


def members(path):
    """(class, bytes) of every image in a tar or folder with one folder per class."""
    if os.path.isdir(path):
        for file in sorted(pathlib.Path(path).glob("*/*.jp*g")):
            yield file.parent.name, file.read_bytes()
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                yield pathlib.PurePath(member.name).parent.name, tar.extractfile(member).read()


def load(path, number_of_classes):
    """(u8 images [N, 3, H, W], labels [N]); classes are numbered in the order of their names."""
    names, images = [], []
    for name, data in members(path):
        names.append(name)
        images.append(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))
    classes = sorted(set(names))
    assert len(classes) == number_of_classes, f"{path} has {len(classes)} classes"
    return torch.stack(images), torch.tensor([classes.index(name) for name in names])


class Normalizer:
    """(x/255 - mean)/std of u8 pixels, channels_last."""

    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))

    def __call__(self, pixels):
        return ((pixels.float() / 255 - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def evaluate(model, images, labels, as_input):
    """(mean cross entropy, top-1 in percent) of a model in evaluation mode."""
    loss = right = 0
    with torch.inference_mode():
        for pixels, target in zip(images.split(500), labels.split(500)):
            logits = model(as_input(pixels))
            loss += F.cross_entropy(logits, target, reduction="sum").item()
            right += (logits.argmax(1) == target).sum().item()
    return loss / len(labels), 100 * right / len(labels)
