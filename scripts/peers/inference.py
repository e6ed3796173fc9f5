"""Inference in f32 against ONNX Runtime, OpenVINO and PyTorch (the better of eager and compile, channels_last), on the same weights."""
import statistics

from measure import PEERS, Series, galley_benchmark, json_of, say, write_table
from models import Models, python, work_folder


def run(args, side, models, batch):
    """(milliseconds, version) of one process."""
    tail = [batch, args.threads, args.seconds]
    if side == "Galley":
        row = galley_benchmark(args, f"benchmark/{models.name}_synthetic", f"weights={models.weights}", "what=forward", f"batch={batch}", f"benchmark.stop.max_time={args.seconds}s")
        return row["runs_ms"], None
    script = {"ONNX Runtime": ["onnx_infer.py", models.onnx], "OpenVINO": ["openvino_infer.py", models.onnx],
              "eager": ["torch_infer.py", models.name, models.weights, "eager"], "compile": ["torch_infer.py", models.name, models.weights, "compile"]}[side]
    result = json_of([python(), PEERS / script[0], *script[1:], *tail])
    return result["times_ms"], result["version"]


def compare(args):
    sides = ["Galley", "ONNX Runtime", "OpenVINO", "eager"] + ([] if args.no_compile else ["compile"])
    rows, versions = [], set()
    with work_folder(args) as folder:
        for name in args.only:
            models = Models(folder, name)
            for batch in args.batch:
                times = {side: Series() for side in sides}
                for _ in range(args.rounds):
                    for side in sides:
                        milliseconds, version = run(args, side, models, batch)
                        times[side].add(milliseconds)
                        versions |= {version} - {None}
                        say(f"inference {name} batch {batch} {side}: {statistics.median(milliseconds):.2f} ms")
                torch = min(sides[3:], key=lambda side: times[side].median)
                speed = lambda side: f"{times[side].median / times['Galley'].median:.2f}x"
                rows.append([f"{name}, batch {batch}", str(times["Galley"]), str(times["ONNX Runtime"]), speed("ONNX Runtime"), str(times["OpenVINO"]), speed("OpenVINO"),
                             f"{times[torch]} {torch}", speed(torch)])
    write_table(args, "inference", ["inference, f32", "Galley ms", "ONNX Runtime ms", "speed", "OpenVINO ms", "speed", "PyTorch ms", "speed"], rows, sorted(versions))
