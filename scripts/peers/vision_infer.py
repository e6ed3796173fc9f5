"""Times a vision model on one image by a peer.

usage: vision_infer.py MODEL {eager|compile|onnxruntime|openvino} MODEL.onnx THREADS SECONDS
"""
import sys

import torch

from timing import report, timed
from vision_models import DETECTORS, build, inputs

name, engine, path, threads, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
torch.set_num_threads(threads)
torch.set_flush_denormal(True)
model = build(name)
arguments = inputs(name, model)
arrays = [image.numpy() for image in (arguments[0] if name in DETECTORS else arguments)]
if engine == "onnxruntime":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((each.name for each in session.get_inputs()), arrays))
    report(timed(lambda: session.run(None, feeds), seconds, least=5), f"ONNX Runtime {onnxruntime.__version__}")
elif engine == "openvino":
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"
    })
    request = compiled.create_infer_request()
    report(timed(lambda: request.infer(arrays), seconds, least=5), f"OpenVINO {openvino.__version__.split('-')[0]}")
else:
    model = model.to(memory_format=torch.channels_last)
    if name not in DETECTORS:
        arguments = tuple(image.to(memory_format=torch.channels_last) for image in arguments)
    call = torch.compile(model) if engine == "compile" else model
    with torch.no_grad():
        report(timed(lambda: call(*arguments), seconds, least=5), f"PyTorch {torch.__version__}")
