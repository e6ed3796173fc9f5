"""Measures the accuracy of PyTorch's static quantization of weights that Galley trained; called by scripts/quantized-accuracy.

usage: torch_quantize.py SETTINGS_JSON: {model, strides (of mobilenet_v2), classes, train, test, mean, std, weights, samples, threads}.
torch.ao.quantization in graph mode with the default configuration for x86: weights with one scale per channel, activations by histograms in
7 bits (without VNNI, its kernels saturate with 8). One JSON line on stdout.
"""
import json
import sys
import warnings

import safetensors.torch
import torch
import torchvision
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from cifar_data import Normalizer, evaluate, load
from cifar_resnet import CifarResNet

warnings.filterwarnings("ignore")
how = json.loads(sys.argv[1])
torch.set_num_threads(how["threads"])
torch.backends.quantized.engine = "x86"


def network():
    if how["model"] == "mobilenet_v2":
        first, *strides = how["strides"]
        stages = [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)]
        model = torchvision.models.mobilenet_v2(num_classes=how["classes"],
                                                inverted_residual_setting=[[*stage, stride] for stage, stride in zip(stages, strides)])
        model.features[0][0].stride = (first, first)
        return model
    return CifarResNet(int(how["model"].removeprefix("cifar_resnet")), how["classes"])


as_input = Normalizer(how["mean"], how["std"])
test = load(how["test"], how["classes"])
images, _ = load(how["train"], how["classes"])
chosen = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: how["samples"]]]

model = network().eval()
missing = model.load_state_dict(safetensors.torch.load_file(how["weights"]), strict=False).missing_keys
assert all(name.endswith("num_batches_tracked") for name in missing), missing
loss, top1 = evaluate(model, *test, as_input)
prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (as_input(chosen[:1]),))
with torch.inference_mode():
    for pixels in chosen.split(64):
        prepared(as_input(pixels))
int8_loss, int8_top1 = evaluate(convert_fx(prepared), *test, as_input)
print(json.dumps({"loss": loss, "top1": top1, "int8_loss": int8_loss, "int8_top1": int8_top1, "version": f"PyTorch {torch.__version__}"}))
