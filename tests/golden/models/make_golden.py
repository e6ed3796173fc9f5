#!/usr/bin/env python3
"""Makes the golden files in this folder: results of PyTorch and torchvision for the models of the zoo.

    python3 tests/golden/models/make_golden.py

Needs torch, torchvision and, for EfficientNet-Lite, the package efficientnet-lite-pytorch. Weights and inputs are a function of (name,
index), which tests/support/golden_weights.h also computes, so the files contain only results. All arithmetic is float64 on weights rounded
to float32. Versions are written to VERSIONS.
"""
import contextlib
import functools
import math
import os
import pathlib
import platform
import sys

import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "nn"))
from golden_values import golden, golden_state
from gpt_model import Gpt
torch.set_num_threads(2)


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


torch.backends.mha.set_fastpath_enabled(False)
VIDEO = ["r3d_18", "mc3_18", "r2plus1d_18"]
TORCHVISION = (
    "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d resnext101_64x4d wide_resnet50_2 wide_resnet101_2 "
    "mobilenet_v2 mobilenet_v3_large mobilenet_v3_small vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn "
    "alexnet squeezenet1_0 squeezenet1_1 densenet121 densenet161 densenet169 densenet201 googlenet inception_v3 "
    "mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 "
    "efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 "
    "efficientnet_v2_s efficientnet_v2_m efficientnet_v2_l "
    "regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf regnet_x_8gf regnet_x_16gf regnet_x_32gf "
    "regnet_y_400mf regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf regnet_y_16gf regnet_y_32gf regnet_y_128gf "
    "vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14 convnext_tiny convnext_small convnext_base convnext_large "
    "swin_t swin_s swin_b swin_v2_t swin_v2_s swin_v2_b"
).split()


# ---- families at reduced size, with the options that tests/nn/golden_model.h sets


def alexnet_reduced():
    model = torchvision.models.alexnet(num_classes=10, dropout=0.0)
    c = model.classifier
    c[1], c[4], c[6] = nn.Linear(256 * 36, 32), nn.Linear(32, 32), nn.Linear(32, 10)
    return model


def densenet_reduced():
    return torchvision.models.DenseNet(8, (2, 3, 2, 2), 16, num_classes=10)


def efficientnet_reduced(rows, width, depth, last, norm):
    """rows: (fused, expand, kernel, stride, in, out, layers) of torchvision's tables; width and depth multiply them."""
    tv = torchvision.models.efficientnet
    settings = []
    for fused, expand, kernel, stride, i, o, layers in rows:
        i, o = (tv.MBConvConfig.adjust_channels(c, width) for c in (i, o))
        make = tv.FusedMBConvConfig if fused else tv.MBConvConfig
        settings.append(make(expand, kernel, stride, i, o, math.ceil(layers * depth)))
    return torchvision.models.EfficientNet(settings, 0.0, stochastic_depth_prob=0.0, num_classes=10, last_channel=last, norm_layer=norm)


V1 = [(0, 1, 3, 1, 32, 16, 1), (0, 6, 3, 2, 16, 24, 2), (0, 6, 5, 2, 24, 40, 2), (0, 6, 3, 2, 40, 80, 3), (0, 6, 5, 1, 80, 112, 3),
      (0, 6, 5, 2, 112, 192, 4), (0, 6, 3, 1, 192, 320, 1)]
V2_S = [(1, 1, 3, 1, 24, 24, 2), (1, 4, 3, 2, 24, 48, 4), (1, 4, 3, 2, 48, 64, 4), (0, 4, 3, 2, 64, 128, 6), (0, 6, 3, 1, 128, 160, 9),
        (0, 6, 3, 2, 160, 256, 15)]


def regnet_reduced(se_ratio):
    tv = torchvision.models.regnet
    params = tv.BlockParams.from_init_params(depth=6, w_0=24, w_a=24.48, w_m=2.54, group_width=16, se_ratio=se_ratio)
    return tv.RegNet(params, num_classes=10)


def vit_reduced():
    return torchvision.models.VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=10)


def convnext_reduced():
    setting = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([setting(16, 32, 1), setting(32, 48, 1), setting(48, 64, 2), setting(64, None, 1)], num_classes=10)


def video_reduced(name, width=8):
    """A video ResNet whose first stage has `width` channels."""
    video = torchvision.models.video.resnet
    model = getattr(torchvision.models.video, name)(num_classes=10)
    makers = {"r3d_18": [video.Conv3DSimple] * 4, "mc3_18": [video.Conv3DSimple] + [video.Conv3DNoTemporal] * 3,
              "r2plus1d_18": [video.Conv2Plus1D] * 4}[name]
    last = -3 if name == "r2plus1d_18" else 0  # the convolution of the stem with the model's width
    old = model.stem[last]
    model.stem[last] = nn.Conv3d(old.in_channels, width, old.kernel_size, old.stride, old.padding, bias=False)
    model.stem[last + 1] = nn.BatchNorm3d(width)
    model.inplanes = width
    for stage, maker in enumerate(makers):
        layer = model._make_layer(video.BasicBlock, maker, width << stage, 2, 1 if stage == 0 else 2)
        setattr(model, f"layer{stage + 1}", layer)
    model.fc = nn.Linear(8 * width, 10)
    return model


def swin_reduced(second):
    tv = torchvision.models.swin_transformer
    kinds = dict(block=tv.SwinTransformerBlockV2, downsample_layer=tv.PatchMergingV2) if second else {}
    return tv.SwinTransformer([4, 4], 24, [2, 2, 1], [2, 4, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10, **kinds)


def norm(**options):
    return functools.partial(nn.BatchNorm2d, **options)


REDUCED = {
    "alexnet_reduced": (alexnet_reduced, 64),
    "squeezenet1_0_reduced": (lambda: torchvision.models.squeezenet1_0(num_classes=10, dropout=0.0), 48),
    "squeezenet1_1_reduced": (lambda: torchvision.models.squeezenet1_1(num_classes=10, dropout=0.0), 48),
    "densenet_reduced": (densenet_reduced, 64),
    "googlenet_reduced": (
        lambda: torchvision.models.googlenet(num_classes=10, dropout=0.0, dropout_aux=0.0, transform_input=True, init_weights=True), 48),
    "inception_v3_reduced": (lambda: torchvision.models.inception_v3(num_classes=10, dropout=0.0, aux_logits=False, init_weights=True), 75),
    "mnasnet_reduced": (lambda: torchvision.models.MNASNet(0.35, num_classes=10, dropout=0.0), 48),
    "shufflenet_reduced": (lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=10), 64),
    "efficientnet_b0_reduced": (lambda: efficientnet_reduced(V1, 0.5, 0.5, None, nn.BatchNorm2d), 48),
    "efficientnet_b5_reduced": (lambda: efficientnet_reduced(V1, 0.25, 0.25, None, norm(eps=0.001, momentum=0.01)), 48),
    "efficientnet_v2_reduced": (lambda: efficientnet_reduced(V2_S, 0.5, 0.25, 1280, norm(eps=0.001)), 48),
    "regnet_x_reduced": (lambda: regnet_reduced(None), 48),
    "regnet_y_reduced": (lambda: regnet_reduced(0.25), 48),
    "vit_reduced": (vit_reduced, 32),
    "convnext_reduced": (convnext_reduced, 64),
    "swin_reduced": (lambda: swin_reduced(False), 60),
    "swin_v2_reduced": (lambda: swin_reduced(True), 60),
}
# One model per family at its real size, and the weights of the auxiliary losses of two of them.
FULL_SIZE = {
    "alexnet": 224, "squeezenet1_0": 224, "densenet121": 224, "googlenet": 224, "inception_v3": 299, "mnasnet1_0": 224,
    "shufflenet_v2_x1_0": 224, "efficientnet_b0": 224, "regnet_x_400mf": 224, "regnet_y_400mf": 224, "vit_b_32": 224, "convnext_tiny": 224,
    "swin_t": 224, "swin_v2_t": 256, "efficientnet_lite0": 224
}
AUXILIARY_WEIGHT = 0.3
SEGMENTATION_WEIGHT = 0.5


class EfficientNetLite0(nn.Module):
    """The network of the package with the names of torchvision's EfficientNets."""

    def __init__(self):
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        net = EfficientNet.from_name("efficientnet-lite0")
        self.__dict__["net"] = net   # not a child; its modules are registered below
        blocks = iter(net._blocks)
        stages = [nn.ModuleList([net._conv_stem, net._bn0])]
        for count in (1, 2, 2, 3, 3, 4, 1):
            stages.append(nn.ModuleList())
            for _ in range(count):
                block, module = next(blocks), nn.Module()
                pairs = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
                module.block = nn.ModuleList(
                    nn.ModuleList([getattr(block, conv), getattr(block, norm)]) for conv, norm in pairs if hasattr(block, conv))
                stages[-1].append(module)
        self.features = nn.ModuleList([*stages, nn.ModuleList([net._conv_head, net._bn1])])
        self.classifier = nn.ModuleList([nn.Identity(), net._fc])

    def train(self, mode=True):
        self.net.train(mode)
        return super().train(mode)

    def forward(self, x):
        return self.net(x)


class RnnLm(nn.Module):
    """The recurrent model of PyTorch's example word_language_model, over bytes."""

    def __init__(self, vocab=256, width=200, layers=2):
        super().__init__()
        self.encoder = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.Linear(width, vocab)


class DoubleConv(nn.Module):
    def __init__(self, inputs, channels, middle):
        super().__init__()
        self.double_conv = nn.Sequential(nn.Conv2d(inputs, middle, 3, padding=1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
                                         nn.Conv2d(middle, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, inputs, channels):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(inputs, channels, channels))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, inputs, channels):
        super().__init__()
        self.conv = DoubleConv(inputs, channels, inputs // 2)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=True)], 1))


class UNet(nn.Module):
    def __init__(self, num_classes=2, base=64, depth=4):
        super().__init__()
        self.depth = depth
        self.inc = DoubleConv(3, base, base)
        for level in range(1, depth + 1):
            channels = base << level
            self.add_module(f"down{level}", Down(base << (level - 1), channels // 2 if level == depth else channels))
        for step in range(1, depth + 1):
            level = depth - step
            self.add_module(f"up{step}", Up(2 * (base << level), base if level == 0 else (base << level) // 2))
        self.outc = nn.ModuleDict({"conv": nn.Conv2d(base, num_classes, 1)})

    def forward(self, x):
        levels = [self.inc(x)]
        for level in range(1, self.depth + 1):
            levels.append(getattr(self, f"down{level}")(levels[-1]))
        y = levels.pop()
        for step in range(1, self.depth + 1):
            y = getattr(self, f"up{step}")(y, levels.pop())
        return self.outc["conv"](y)


SEGMENTATION = [
    "fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101", "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large", "fcn_mobilenet_v3_large"
]


def segmentation(name, **options):
    """A model of torchvision without dropout. For FCN on MobileNetV3 it has the parts, but no function that joins them."""
    if name == "fcn_mobilenet_v3_large":
        from torchvision.models.segmentation.fcn import FCN, FCNHead
        model = segmentation("deeplabv3_mobilenet_v3_large", **options)
        model = FCN(model.backbone, FCNHead(960, options.get("num_classes", 21)), model.aux_classifier)
    else:
        model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, **options)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


DECODERS = {"gpt2": "GPT2", "gpt_neo": "GPTNeo", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}


def make(name):
    if name == "rnn_lm":
        return RnnLm()
    if name in DECODERS:
        import transformers

        config = getattr(transformers, DECODERS[name] + "Config")(vocab_size=256, pad_token_id=None)
        return transformers.AutoModelForCausalLM.from_config(config)
    if name == "gpt":
        return Gpt(layers=12, heads=12, width=768, vocabulary=256, block=1024, bias=True, tied=True)
    if name in REDUCED:
        return REDUCED[name][0]()
    if name in ("googlenet", "inception_v3"):
        return getattr(torchvision.models, name)(init_weights=True)
    if name in SEGMENTATION:
        return segmentation(name)
    if name == "unet":
        return UNet()
    if name in VIDEO:
        return getattr(torchvision.models.video, name)(weights=None)
    if name in TORCHVISION:
        return getattr(torchvision.models, name)()
    if name == "efficientnet_lite0":
        return EfficientNetLite0()
    if name == "mlp":
        return Mlp()
    if name == "cnn":
        return Cnn()
    return CifarResNet((int(name.removeprefix("cifar_resnet")) - 2) // 6)


@contextlib.contextmanager
def regnet_widths_on_cpu():
    """RegNet computes its widths with tensors, which is not possible on a device without data."""
    params = torchvision.models.regnet.BlockParams
    original = params.from_init_params

    def on_cpu(**kwargs):
        with torch.device("cpu"):
            return original(**kwargs)

    params.from_init_params = on_cpu
    yield
    params.from_init_params = original


def write_zoo():
    """Every model: `model NAME PARAMETERS`, then `p|b SHARED NAME SIZES` in the order of state_dict; SHARED counts the leading
    characters that the name shares with the previous one and that are omitted."""
    lines = []
    for name in [
            "mlp", "cnn", *(f"cifar_resnet{n}" for n in (20, 32, 44, 56, 110)), *TORCHVISION, "efficientnet_lite0", "rnn_lm", "gpt",
            *DECODERS, *SEGMENTATION, "unet", *VIDEO
    ]:
        with torch.device("meta"), regnet_widths_on_cpu():
            model = make(name)
        parameters = dict(model.named_parameters())
        lines.append(f"model {name} {sum(p.numel() for p in parameters.values())}")
        before = ""
        for key, value in model.state_dict().items():
            if name in DECODERS and key not in parameters:
                continue  # a tied head is the token embedding
            if name == "gpt2" and key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
                value = value.T  # stored [in,out]
            shared = len(os.path.commonprefix([before, key]))
            lines.append(f"{'p' if key in parameters else 'b'} {shared} {key[shared:]} {','.join(map(str, value.shape)) or '-'}")
            before = key
    (HERE / "zoo.txt").write_text("\n".join(lines) + "\n")


def write_published():
    """All weights of torchvision: `MODEL WEIGHTS PARAMETERS GMACS IMAGE_SIZE`, as in their documentation."""
    lines = []
    for name in TORCHVISION:
        for weights in torchvision.models.get_model_weights(name):
            size = weights.transforms.keywords["crop_size"]
            lines.append(f"{name} {weights.name} {weights.meta['num_params']} {weights.meta['_ops']} {size}")
    (HERE / "published.txt").write_text("\n".join(lines) + "\n")


def write_init():
    """`model NAME`, then `NAME MEAN STD MAX` of each parameter after initialization with seed 0."""
    lines = []
    for name in [*"mlp cnn cifar_resnet20 resnet18 mobilenet_v2 mobilenet_v3_small vgg11_bn".split(), *REDUCED, "inception_v3"]:
        torch.manual_seed(0)
        model = make(name)
        lines.append(f"model {name}")
        for key, p in model.named_parameters():
            if name == "inception_v3" and not key.startswith("AuxLogits"):
                continue
            p = p.detach().double()
            lines.append(f"{key} {p.mean().item():.6g} {p.std(unbiased=False).item():.6g} {p.abs().max().item():.6g}")
        del model
    (HERE / "init.txt").write_text("\n".join(lines) + "\n")


class Writer:
    def __init__(self, digits=12):
        self.lines = []
        self.digits = digits

    def full(self, key, t):
        values = t.detach().double().reshape(-1).tolist()
        self.lines.append(f"{key} full {len(values)} " + " ".join(f"{v:.{self.digits}g}" for v in values))

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


def is_table(key):
    return key.endswith(("relative_position_index", "relative_coords_table"))


def prepare(model):
    model = model.double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Hardsigmoid):
                setattr(module, name, ExactHardsigmoid())
    # Tables that a model computes once are not replaced; those of Swin's second version are rounded to float32 after the arithmetic, not
    # before.
    for module in model.modules():
        if isinstance(module, torchvision.models.swin_transformer.ShiftedWindowAttentionV2):
            d = torch.linspace(-8, 8, 2 * module.window_size[0] - 1, dtype=torch.float64)
            d = (d.sign() * torch.log2(d.abs() + 1) / 3).float().double()
            module.relative_coords_table = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1).unsqueeze(0)
    for key, value in model.state_dict().items():
        if not is_table(key):
            value.copy_(golden_state(key, tuple(value.shape)))
    return model


def batch(name, shape, classes, label_shape=None):
    label_shape = label_shape or shape[:1]
    return golden(name, shape, math.sqrt(3.0)), (torch.arange(math.prod(label_shape)) * 3 % classes).reshape(label_shape)


def write_case(name, model, shape, classes):
    model = prepare(model)
    dense = isinstance(model, UNet) or name.startswith(("fcn", "deeplab", "lraspp"))
    x, target = batch("input", shape, classes, (shape[0], *shape[2:]) if dense else None)
    w = Writer()

    def results_of():
        results = model(x)
        if isinstance(results, dict):
            return list(results.values())
        return results if isinstance(results, tuple) else (results,)

    model.eval()
    with torch.no_grad():
        w.full("eval", results_of()[0])
    model.train()
    x.requires_grad_(True)
    logits, *auxiliary = results_of()
    loss = F.cross_entropy(logits, target, label_smoothing=0.1)
    weight = SEGMENTATION_WEIGHT if dense else AUXILIARY_WEIGHT
    loss = loss + weight * sum(F.cross_entropy(a, target, label_smoothing=0.1) for a in auxiliary)
    loss.backward()
    w.full("train", logits)
    w.full("loss", loss)
    w.sample("grad:input", x.grad)
    for key, p in model.named_parameters():
        w.sample("grad:" + key, p.grad)
    for key, value in model.named_buffers():
        if not is_table(key):
            w.sample("buffer:" + key, value)
    w.save(name)


def write_full_size():
    """Logits of whole models at batch 1 in evaluation mode; in training mode, at batch 2, if the auxiliary classifier needs large
    images."""
    w = Writer(7)
    for name, size in FULL_SIZE.items():
        model = prepare(make(name)).eval()
        with torch.no_grad():
            w.full(name, model(golden("input", (1, 3, size, size), math.sqrt(3.0))))
            if name == "inception_v3":
                model.dropout.p = 0.0
                logits, aux = model.train()(golden("input", (2, 3, size, size), math.sqrt(3.0)))
                w.full(name + ":train", logits)
                w.full(name + ":aux", aux)
    w.save("full_size")


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
    write_published()
    write_full_size()
    for name, (build, size) in REDUCED.items():
        write_case(name, build(), (2, 3, size, size), 10)
    write_case("mlp", Mlp(hidden=(64, 32)), (3, 1, 28, 28), 10)
    write_case("cnn", Cnn(channels=(8, 16, 24)), (4, 1, 28, 28), 10)
    write_case("cifar_resnet20", CifarResNet(3), (4, 3, 16, 16), 10)
    write_case("resnet18", tv.resnet18(num_classes=10), (2, 3, 48, 48), 10)
    bottleneck = tv.resnet.Bottleneck
    write_case("resnet50_dilated", tv.ResNet(bottleneck, [3, 4, 6, 3], num_classes=10, replace_stride_with_dilation=[False, False, True]),
               (2, 3, 32, 32), 10)
    write_case("resnext50_32x4d", tv.resnext50_32x4d(num_classes=10), (2, 3, 48, 48), 10)
    write_case("mobilenet_v2", tv.mobilenet_v2(num_classes=10, width_mult=0.5, dropout=0.0), (2, 3, 48, 48), 10)
    write_case("mobilenet_v3_large", tv.mobilenet_v3_large(num_classes=10, width_mult=0.75, dropout=0.0), (2, 3, 48, 48), 10)
    write_case("mobilenet_v3_small", tv.mobilenet_v3_small(num_classes=10, reduced_tail=True, dilated=True, dropout=0.0), (2, 3, 48, 48),
               10)
    write_case("vgg11", vgg("vgg11", 32, 10), (2, 3, 32, 32), 10)
    write_case("vgg13_bn", vgg("vgg13_bn", 32, 10), (2, 3, 32, 32), 10)
    write_case("fcn", segmentation("fcn_resnet50", num_classes=10, aux_loss=True), (2, 3, 17, 20), 10)
    write_case("deeplabv3", segmentation("deeplabv3_mobilenet_v3_large", num_classes=10, aux_loss=True), (2, 3, 24, 17), 10)
    write_case("lraspp", segmentation("lraspp_mobilenet_v3_large", num_classes=10), (2, 3, 24, 17), 10)
    write_case("unet_reduced", UNet(num_classes=10, base=8, depth=2), (2, 3, 12, 16), 10)
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        write_case(name + "_reduced", video_reduced(name), (3, 3, 4, 20, 18), 10)
    write_steps("sgd_cifar_resnet20", CifarResNet(3), (4, 3, 16, 16), 10,
                lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4))
    small = dict(num_classes=10, width_mult=0.35, dropout=0.0)
    write_steps("adamw_mobilenet_v3_small", tv.mobilenet_v3_small(**small), (4, 3, 32, 32), 10,
                lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05))
    write_steps("rmsprop_mobilenet_v3_small", tv.mobilenet_v3_small(**small), (4, 3, 32, 32), 10,
                lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=1e-5))
    (HERE / "VERSIONS").write_text(
        f"python {platform.python_version()}\ntorch {torch.__version__}\ntorchvision {torchvision.__version__}\nnumpy {np.__version__}\n")


if __name__ == "__main__":
    main()
