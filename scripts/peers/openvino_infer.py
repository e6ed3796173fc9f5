"""Times inference by OpenVINO. usage: openvino_infer.py MODEL.{onnx,xml} BATCH THREADS SECONDS [PRECISION]"""
import sys

import numpy
import openvino

from timing import report, timed

path, batch, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
core = openvino.Core()
model = core.read_model(path)
model.reshape([batch, 3, 224, 224])
compiled = core.compile_model(model, "CPU", {
    "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": sys.argv[5] if len(sys.argv) > 5 else "f32"
})
request = compiled.create_infer_request()
image = numpy.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=numpy.float32)
request.set_input_tensor(openvino.Tensor(image, shared_memory=True))
report(timed(request.infer, seconds), f"OpenVINO {openvino.__version__.split('-')[0]}")
