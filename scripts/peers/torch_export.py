"""Writes a torchvision model with random weights: its tensors (.pth) and an ONNX file for any batch size.

usage: torch_export.py MODEL WEIGHTS.pth MODEL.onnx
Running statistics are those of random images, so that activations are as large as in a trained model.
"""
import sys

import torch
import torchvision

name, weights, path = sys.argv[1:]
torch.manual_seed(0)
model = getattr(torchvision.models, name)()
for module in model.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        module.momentum = None  # cumulative average
with torch.no_grad():
    model.train()(torch.randn(16, 3, 224, 224))
model.eval()
torch.save(model.state_dict(), weights)
torch.onnx.export(model, (torch.randn(2, 3, 224, 224),), path, input_names=["input"], output_names=["output"],
                  dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=256)},), external_data=False)
