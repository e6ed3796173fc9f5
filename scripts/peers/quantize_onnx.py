"""Static quantization by ONNX Runtime: QDQ, weights per channel, min-max ranges on random images.

usage: quantize_onnx.py F32.onnx INT8.onnx {s8s8|u8s8} SAMPLES
"""
import pathlib
import sys
import tempfile

import numpy
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

source, target, kind, samples = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
random = numpy.random.default_rng(0)


class Images(CalibrationDataReader):
    def __init__(self):
        self.left = samples // 8

    def get_next(self):
        self.left -= 1
        return None if self.left < 0 else {"input": random.standard_normal((8, 3, 224, 224), dtype=numpy.float32)}


with tempfile.TemporaryDirectory() as folder:
    prepared = pathlib.Path(folder) / "prepared.onnx"
    quant_pre_process(source, str(prepared))
    quantize_static(str(prepared), target, Images(), quant_format=QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8,
                    activation_type={"s8s8": QuantType.QInt8, "u8s8": QuantType.QUInt8}[kind], calibrate_method=CalibrationMethod.MinMax)
