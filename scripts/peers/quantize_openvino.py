"""Post-training quantization by NNCF for OpenVINO, with its defaults, on random images.

usage: quantize_openvino.py F32.onnx INT8.xml SAMPLES
"""
import sys

import nncf
import numpy
import openvino

source, target, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
random = numpy.random.default_rng(0)
images = [random.standard_normal((1, 3, 224, 224), dtype=numpy.float32) for _ in range(samples)]
model = nncf.quantize(openvino.Core().read_model(source), nncf.Dataset(images), subset_size=samples)
openvino.save_model(model, target, compress_to_fp16=False)
