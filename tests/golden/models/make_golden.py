#!/usr/bin/env python3
"""Makes the golden files beside it: what PyTorch and torchvision compute for the models of the zoo.

    python3 tests/golden/models/make_golden.py

Weights and inputs are a function of (name, index) that tests/support/golden_weights.h computes too, so the files hold
results only. All arithmetic is float64 on weights rounded to float32. Versions are written to VERSIONS.
"""
import math
import pathlib
import platform

import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
torch.set_num_threads(2)


def golden(name, shape, scale=1.0, shift=0.0):
    """shift + scale * u, u uniform in [-1,1): splitmix64 of (FNV-1a of the name + index), top 24 bits; rounded to float32."""
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return torch.from_numpy((shift + scale * u).astype(np.float32).astype(np.float64).reshape(shape))


def golden_state(name, shape):
    if name.endswith("num_batches_tracked"):
        return torch.zeros((), dtype=torch.int64)
    if name.endswith("running_var"):
        return golden(name, shape, 0.5, 1.0)
    if len(shape) >= 2:
        return golden(name, shape, math.sqrt(6.0 / math.prod(shape[1:])))
    if name.endswith(".weight"):
        return golden(name, shape, 0.2, 1.0)
    return golden(name, shape, 0.1)


class LambdaBlock(nn.Module):
    """A block of the CIFAR ResNets with option-A shortcuts."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.more = stride, channels - inputs

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = x[:, :, :: self.stride, :: self.stride]
        if self.more:
            short = F.pad(short, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(y + short)


class CifarResNet(nn.Module):
    def __init__(self, blocks, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage in range(3):
            channels = 16 << stage
            first = 16 if stage == 0 else channels // 2
            layer = [LambdaBlock(first if i == 0 else channels, channels, 2 if i == 0 and stage else 1) for i in range(blocks)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.linear = nn.Linear(64, num_classes)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(m.weight)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class Mlp(nn.Module):
    def __init__(self, num_classes=10, hidden=(512, 256), inputs=784):
        super().__init__()
        widths = [inputs, *hidden, num_classes]
        self.count = len(widths) - 1
        for i in range(self.count):
            fc = nn.Linear(widths[i], widths[i + 1])
            nn.init.kaiming_normal_(fc.weight)
            nn.init.zeros_(fc.bias)
            setattr(self, f"fc{i + 1}", fc)

    def forward(self, x):
        x = x.flatten(1)
        for i in range(1, self.count + 1):
            x = getattr(self, f"fc{i}")(x)
            x = F.relu(x) if i < self.count else x
        return x


class Cnn(nn.Module):
    def __init__(self, num_classes=10, channels=(32, 64, 128), size=28):
        super().__init__()
        inputs = 1
        self.count = len(channels)
        for i, c in enumerate(channels, 1):
            conv = nn.Conv2d(inputs, c, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out")
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm2d(c))
            inputs, size = c, size // 2
        self.fc = nn.Linear(inputs * size * size, num_classes)

    def forward(self, x):
        for i in range(1, self.count + 1):
            x = F.max_pool2d(F.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))), 2)
        return self.fc(x.flatten(1))


def vgg(name, hidden, num_classes):
    model = getattr(torchvision.models, name)(num_classes=num_classes, dropout=0.0)
    c = model.classifier
    c[0], c[3], c[6] = nn.Linear(512 * 49, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, num_classes)
    return model


TORCHVISION = (
    "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d wide_resnet50_2 wide_resnet101_2 "
    "mobilenet_v2 mobilenet_v3_large mobilenet_v3_small vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn"
).split()


def make(name):
    if name in TORCHVISION:
        return getattr(torchvision.models, name)()
    if name == "mlp":
        return Mlp()
    if name == "cnn":
        return Cnn()
    return CifarResNet((int(name.removeprefix("cifar_resnet")) - 2) // 6)


def write_zoo():
    """Every model: `model NAME PARAMETERS`, then `p|b NAME SIZES` in the order of state_dict."""
    lines = []
    for name in ["mlp", "cnn", *(f"cifar_resnet{n}" for n in (20, 32, 44, 56, 110)), *TORCHVISION]:
        with torch.device("meta"):
            model = make(name)
        parameters = dict(model.named_parameters())
        lines.append(f"model {name} {sum(p.numel() for p in parameters.values())}")
        for key, value in model.state_dict().items():
            lines.append(f"{'p' if key in parameters else 'b'} {key} {','.join(map(str, value.shape)) or '-'}")
    (HERE / "zoo.txt").write_text("\n".join(lines) + "\n")


def write_init():
    """`model NAME`, then `NAME MEAN STD MAX` of each parameter after initialisation with seed 0."""
    lines = []
    for name in "mlp cnn cifar_resnet20 resnet18 mobilenet_v2 mobilenet_v3_small vgg11_bn".split():
        torch.manual_seed(0)
        model = make(name)
        lines.append(f"model {name}")
        for key, p in model.named_parameters():
            p = p.detach().double()
            lines.append(f"{key} {p.mean().item():.6g} {p.std(unbiased=False).item():.6g} {p.abs().max().item():.6g}")
        del model
    (HERE / "init.txt").write_text("\n".join(lines) + "\n")


class Writer:
    def __init__(self):
        self.lines = []

    def full(self, key, t):
        values = t.detach().double().reshape(-1).tolist()
        self.lines.append(f"{key} full {len(values)} " + " ".join(f"{v:.12g}" for v in values))

    def sample(self, key, t):
        """Norm, then the elements at 0, n/3, 2n/3, n-1."""
        t = t.detach().double().reshape(-1)
        n = t.numel()
        picked = [t[i].item() for i in (0, n // 3, 2 * n // 3, n - 1)]
        self.lines.append(f"{key} sample {n} " + " ".join(f"{v:.12g}" for v in [t.norm().item(), *picked]))

    def save(self, name):
        (HERE / f"{name}.txt").write_text("\n".join(self.lines) + "\n")


class ExactHardsigmoid(nn.Module):
    """PyTorch 2.x's backward of hardsigmoid multiplies by 1/6 in float32 even in double, an error of 3e-8."""

    def forward(self, x):
        return F.relu6(x + 3) / 6


def prepare(model):
    model = model.double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Hardsigmoid):
                setattr(module, name, ExactHardsigmoid())
    model.load_state_dict({k: golden_state(k, tuple(v.shape)) for k, v in model.state_dict().items()})
    return model


def batch(name, shape, classes):
    return golden(name, shape, math.sqrt(3.0)), torch.arange(shape[0]) * 3 % classes


def write_case(name, model, shape, classes):
    model = prepare(model)
    x, target = batch("input", shape, classes)
    w = Writer()
    model.eval()
    with torch.no_grad():
        w.full("eval", model(x))
    model.train()
    x.requires_grad_(True)
    logits = model(x)
    loss = F.cross_entropy(logits, target, label_smoothing=0.1)
    loss.backward()
    w.full("train", logits)
    w.full("loss", loss)
    w.sample("grad:input", x.grad)
    for key, p in model.named_parameters():
        w.sample("grad:" + key, p.grad)
    for key, value in model.named_buffers():
        w.sample("buffer:" + key, value)
    w.save(name)


def write_steps(name, model, shape, classes, make_optimizer):
    model = prepare(model)
    model.train()
    optimizer = make_optimizer(model.parameters())
    w = Writer()
    for step in range(5):
        x, target = batch(f"input{step}", shape, classes)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        w.full(f"loss{step}", loss)
    for key, value in model.state_dict().items():
        w.sample("after:" + key, value)
    w.save(name)


def main():
    tv = torchvision.models
    write_zoo()
    write_init()
    write_case("mlp", Mlp(hidden=(64, 32)), (3, 1, 28, 28), 10)
    write_case("cnn", Cnn(channels=(8, 16, 24)), (4, 1, 28, 28), 10)
    write_case("cifar_resnet20", CifarResNet(3), (4, 3, 16, 16), 10)
    write_case("resnet18", tv.resnet18(num_classes=10), (2, 3, 48, 48), 10)
    bottleneck = tv.resnet.Bottleneck
    write_case("resnet50_dilated", tv.ResNet(bottleneck, [3, 4, 6, 3], num_classes=10, replace_stride_with_dilation=[False, False, True]), (2, 3, 32, 32), 10)
    write_case("resnext50_32x4d", tv.resnext50_32x4d(num_classes=10), (2, 3, 48, 48), 10)
    write_case("mobilenet_v2", tv.mobilenet_v2(num_classes=10, width_mult=0.5, dropout=0.0), (2, 3, 48, 48), 10)
    write_case("mobilenet_v3_large", tv.mobilenet_v3_large(num_classes=10, width_mult=0.75, dropout=0.0), (2, 3, 48, 48), 10)
    write_case("mobilenet_v3_small", tv.mobilenet_v3_small(num_classes=10, reduced_tail=True, dilated=True, dropout=0.0), (2, 3, 48, 48), 10)
    write_case("vgg11", vgg("vgg11", 32, 10), (2, 3, 32, 32), 10)
    write_case("vgg13_bn", vgg("vgg13_bn", 32, 10), (2, 3, 32, 32), 10)
    write_steps("sgd_cifar_resnet20", CifarResNet(3), (4, 3, 16, 16), 10,
                lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4))
    small = dict(num_classes=10, width_mult=0.35, dropout=0.0)
    write_steps("adamw_mobilenet_v3_small", tv.mobilenet_v3_small(**small), (4, 3, 32, 32), 10,
                lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05))
    write_steps("rmsprop_mobilenet_v3_small", tv.mobilenet_v3_small(**small), (4, 3, 32, 32), 10,
                lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=1e-5))
    (HERE / "VERSIONS").write_text(f"python {platform.python_version()}\ntorch {torch.__version__}\ntorchvision {torchvision.__version__}\nnumpy {np.__version__}\n")


if __name__ == "__main__":
    main()
