"""Writes a vision model with random weights: its tensors (.pth), and an ONNX file for one image. The exporter that follows the trace
(dynamo=False) is the one that takes these detectors. usage: vision_export.py MODEL WEIGHTS.pth MODEL.onnx"""
import sys
import warnings

import torch

from vision_models import DETECTORS, Exported, build, inputs

warnings.filterwarnings("ignore")
name, weights, path = sys.argv[1:]
model = build(name)
torch.save(model.state_dict(), weights)
arguments = inputs(name, model)
images = (arguments[0][0],) if name in DETECTORS else arguments
torch.onnx.export(Exported(name, model).eval(), images, path, opset_version=16 if name in DETECTORS else 17, dynamo=False,
                  input_names=["image1", "image2"][:len(images)])
