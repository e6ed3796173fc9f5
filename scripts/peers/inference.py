"""Inference in f32 against ONNX Runtime, OpenVINO and PyTorch (the better of eager and compile, channels_last), on the same weights; and in
bf16 against OpenVINO and PyTorch, on processors with bf16 instructions."""
import statistics

from measure import PEERS, Series, galley_benchmark, json_of, processor_has, record, say
from models import Models, python, work_folder


def run(args, side, precision, models, batch):
    """(milliseconds, version) of one process."""
    tail = [batch, args.threads, args.seconds, precision]
    if side == "Galley":
        row = galley_benchmark(args, f"benchmark/{models.name}_synthetic", f"weights={models.weights}", "what=forward", f"batch={batch}",
                               f"precision={precision}", f"benchmark.stop.max_time={args.seconds}s")
        return row["runs_ms"], None
    script = {
        "ONNX Runtime": ["onnx_infer.py", models.onnx], "OpenVINO": ["openvino_infer.py", models.onnx],
        "eager": ["torch_infer.py", models.name, models.weights,
                  "eager"], "compile": ["torch_infer.py", models.name, models.weights, "compile"]
    }[side]
    result = json_of([python(), PEERS / script[0], *script[1:], *tail])
    return result["times_ms"], result["version"]


def compare(args):
    compare_in(args, "f32", ["ONNX Runtime", "OpenVINO"], "inference")
    if args.bf16 or processor_has("avx512_bf16"):
        compare_in(args, "bf16", ["OpenVINO"], "inference bf16")


def compare_in(args, precision, runtimes, part):
    torch_modes = ["eager"] if args.no_compile else ["eager", "compile"]
    sides = ["Galley", *runtimes, *torch_modes]
    rows, versions = [], set()
    with work_folder(args) as folder:
        for name in args.only:
            models = Models(folder, name)
            for batch in args.batch:
                times = {side: Series() for side in sides}
                for _ in range(args.rounds):
                    for side in sides:
                        milliseconds, version = run(args, side, precision, models, batch)
                        times[side].add(milliseconds)
                        versions |= {version} - {None}
                        say(f"inference {name} batch {batch} {precision} {side}: {statistics.median(milliseconds):.2f} ms")
                torch = min(torch_modes, key=lambda side: times[side].median)
                rows.append(
                    (f"{name}, batch {batch}",
                     {**{side: times[side].summary() for side in ("Galley", *runtimes)}, "PyTorch": times[torch].summary(mode=torch)}))
    record(args, part, rows, versions)
