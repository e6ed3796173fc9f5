"""Training steps against PyTorch: the best of eager and compile, contiguous and channels_last."""
import json
import pathlib
import statistics
import tempfile

from environment import environment
from measure import PEERS, Series, json_of, number, output_of, say, write_table

WORK = {"resnet50": (16, 8), "mobilenet_v3_large": (32, 10), "cifar_resnet20": (128, 20)}  # model: batch, timed steps


def run_galley(args, model):
    batch, steps = WORK[model]
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        output_of([args.bin / "galley-train", f"benchmark/{model}_synthetic", "-o", run, f"train.duration={steps + 3} steps", f"train.batch={batch}",
                   "log.every=1 step", "--threads", args.threads, "--quiet"])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run / "result.json").read_text())
    return {"times_ms": [row["step_ms"] for row in rows if row["kind"] == "train"][3:], "peak_bytes": summary["peak_bytes"], "planned": summary["planned_peak_bytes"]}


def compare(args):
    python = environment("torch", "torchvision")
    modes = [(mode, layout) for mode in (["eager"] if args.no_compile else ["eager", "compile"]) for layout in ("contiguous", "channels_last")]
    rows, version = [], ""
    for model in args.only:
        batch, steps = WORK[model]
        times, peaks, planned = {side: Series() for side in ["galley", *modes]}, {}, 0
        for _ in range(args.rounds):
            for side in times:
                if side == "galley":
                    run = run_galley(args, model)
                    planned = run["planned"]
                else:
                    run = json_of([python, PEERS / "torch_train.py", model, batch, steps, *side, args.threads])
                    version = run["version"]
                times[side].add(run["times_ms"])
                peaks[side] = max(peaks.get(side, 0), run["peak_bytes"])
                say(f"training {model} {side}: {statistics.median(run['times_ms']):.1f} ms")
        best = min(modes, key=lambda mode: times[mode].median)
        least = min(peaks[mode] for mode in modes)
        mib = lambda value: number(value / 2**20)
        rows.append([f"{model}, batch {batch}", str(times["galley"]), str(times[best]), " ".join(best), f"{times[best].median / times['galley'].median:.2f}x",
                     mib(peaks["galley"]), mib(planned), mib(least), f"{peaks['galley'] / least:.2f}x"])
    write_table(args, "training", ["training step, f32", "Galley ms", "PyTorch's best ms", "mode", "speed", "Galley MiB", "planned MiB", "PyTorch's least MiB", "memory"],
                rows, [f"PyTorch {version}"])
