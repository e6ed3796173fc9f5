"""An encoder, BERT-base on 128 tokens, against ONNX Runtime, OpenVINO and PyTorch: f32, and int8 against ONNX Runtime's dynamic and
OpenVINO's static quantization."""
import pathlib
import statistics

from environment import environment
from measure import PEERS, Series, galley_benchmark, json_of, output_of, record, say
from models import work_folder

WORK = ["bert_base"]
SIDES = {"f32": {"onnx": "ONNX Runtime", "openvino": "OpenVINO", "eager": "PyTorch", "compile": "PyTorch"},
         "int8": {"onnx_int8": "ONNX Runtime", "openvino_int8": "OpenVINO"}}
GALLEY_INT8 = {"dynamic": ["quantize.method=dynamic"], "static": ["quantize.method=static"]}


def python():
    return environment("torch", "transformers", "onnx", "onnxruntime", "openvino", "nncf")


def galley_weights(args, folder):
    """The files of Galley's sides: f32 as exported, and int8 by each method, calibrated on random tokens."""
    files = {"f32": folder / "bert"}
    recipe = "benchmark/bert_base_synthetic"
    tail = [f"weights={files['f32']}", "--threads", args.threads, "--quiet"]
    statistics_file = folder / "bert.calib"
    output_of([args.bin / "galley-calibrate", recipe, "data.calibration.samples=16", "data.calibration.batch=4",
               "data.calibration.pipeline=train", *tail, "-o", statistics_file])
    for name, words in GALLEY_INT8.items():
        files[name] = folder / f"bert_{name}.safetensors"
        calibration = ["--calibration", statistics_file] if name == "static" else []
        output_of([args.bin / "galley-quantize", recipe, *words, *calibration, *tail, "-o", files[name]])
    return files


def compare(args):
    rows, versions = [], set()
    with work_folder(args) as folder:
        peers = pathlib.Path(folder) / "bert"
        if not (peers / "bert_int8.onnx").exists():
            output_of([python(), PEERS / "bert_export.py", peers])
        files = galley_weights(args, pathlib.Path(folder))

        def run(side, batch):
            if side in files:
                return galley_benchmark(args, "benchmark/bert_base_synthetic", f"weights={files[side]}", "what=forward", f"batch={batch}",
                                        f"benchmark.stop.max_time={args.seconds}s")["runs_ms"]
            result = json_of([python(), PEERS / "bert_infer.py", side, peers, batch, args.threads, args.seconds])
            versions.add(result["version"])
            return result["times_ms"]

        for batch in args.batch:
            times = {side: Series() for side in [*files, *SIDES["f32"], *SIDES["int8"]] if not (args.no_compile and side == "compile")}
            for _ in range(args.rounds):
                for side, series in times.items():
                    series.add(run(side, batch))
                    say(f"bert_base batch {batch} {side}: {statistics.median(series.rounds[-1]):.2f} ms")
            rows += rows_of(batch, times)
    record(args, "text encoders", rows, versions)


def rows_of(batch, times):
    """f32 and int8, each program with its fastest mode."""
    rows = []
    for precision, ours in (("f32", ["f32"]), ("int8", list(GALLEY_INT8))):
        sides = {"Galley": ours}
        for side, program in SIDES[precision].items():
            if side in times:
                sides.setdefault(program, []).append(side)
        row = {}
        for program, modes in sides.items():
            best = min(modes, key=lambda mode: times[mode].median)
            row[program] = times[best].summary(**({"mode": best.split("_")[0]} if len(modes) > 1 else {}))
        rows.append((f"bert_base, 128 tokens, batch {batch}, {precision}", row))
    return rows
