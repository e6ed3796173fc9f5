"""Times inference by ONNX Runtime. usage: onnx_infer.py MODEL.onnx BATCH THREADS SECONDS"""
import sys

import numpy
import onnxruntime

from timing import report, timed

path, batch, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
options.inter_op_num_threads = 1
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
options.log_severity_level = 3
options.add_free_dimension_override_by_name("batch", batch)
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
image = numpy.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=numpy.float32)
report(timed(lambda: session.run(None, {"input": image}), seconds), f"ONNX Runtime {onnxruntime.__version__}")
