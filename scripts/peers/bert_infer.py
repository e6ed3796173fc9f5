"""Times a BERT-base encoder on 128 tokens without padding: one peer per process, one JSON line on stdout.

usage: bert_infer.py {onnx|onnx_int8|openvino|openvino_int8|eager|compile} FOLDER BATCH THREADS SECONDS     FOLDER: of bert_export.py
"""
import pathlib
import sys

import numpy

from timing import report, timed

LENGTH, VOCABULARY = 128, 30522
side, folder, batch, threads, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])


def batch_of(seed):
    ids = numpy.random.default_rng(seed).integers(0, VOCABULARY, (batch, LENGTH))
    return {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}


def onnx_runtime():
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    path = folder / ("bert_int8.onnx" if side == "onnx_int8" else "bert.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, batch_of(0)), f"ONNX Runtime {onnxruntime.__version__}"


def openvino():
    import openvino
    core = openvino.Core()
    model = core.read_model(folder / "bert.onnx")
    model.reshape({port.any_name: [batch, LENGTH] for port in model.inputs})
    if side == "openvino_int8":
        import nncf
        samples = nncf.Dataset([batch_of(seed) for seed in range(4)])
        model = nncf.quantize(model, samples, model_type=nncf.ModelType.TRANSFORMER, subset_size=4)
    compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads,
                                                 "INFERENCE_PRECISION_HINT": "f32"})
    request, feeds = compiled.create_infer_request(), batch_of(0)
    return lambda: request.infer(feeds), f"OpenVINO {openvino.__version__.split('-')[0]}"


def pytorch():
    import torch
    from transformers import BertModel
    torch.set_num_threads(threads)
    model = BertModel.from_pretrained(folder).eval().requires_grad_(False)
    forward = torch.compile(model) if side == "compile" else model
    feeds = {name: torch.from_numpy(value) for name, value in batch_of(0).items()}

    def run():
        with torch.inference_mode():
            forward(**feeds)
    return run, f"PyTorch {torch.__version__}"


run, version = {"onnx": onnx_runtime, "open": openvino}.get(side[:4], pytorch)()
report(timed(run, seconds, least=5), version)
