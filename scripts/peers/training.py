"""Training steps against PyTorch: the best of eager and compile, contiguous and channels_last; in bf16 against its best of both
precisions."""
import json
import pathlib
import statistics
import tempfile

from environment import environment
from measure import PEERS, Series, galley_benchmark, json_of, output_of, processor_has, record, say

WORK = {"resnet50": (16, 8), "mobilenet_v3_large": (32, 10), "cifar_resnet20": (128, 20)}  # model: batch, timed steps


def run_galley(args, model, precision):
    """Times steps on one batch, as PyTorch's script does, and measures the memory of training with its loader."""
    batch, steps = WORK[model]
    recipe = f"benchmark/{model}_synthetic"
    row = galley_benchmark(args, recipe, "what=train_step", f"batch={batch}", f"precision={precision}", f"stop.min_runs={steps}",
                           "stop.ci=100%")
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        output_of([
            args.bin / "galley-train", recipe, "-o", run, "train.duration=4 steps", f"train.batch={batch}", f"precision={precision}",
            "--threads", args.threads, "--quiet"
        ])
        summary = json.loads((run / "result.json").read_text())
    return {"times_ms": row["runs_ms"], "peak_bytes": summary["peak_bytes"], "planned": summary["planned_peak_bytes"]}


def compare(args):
    python = environment("torch", "torchvision")
    precisions = ["f32", "bf16"] if args.bf16 or processor_has("avx512_bf16") else ["f32"]
    ours = [("galley", precision) for precision in precisions]
    modes = [(mode, layout, precision) for precision in precisions for mode in (["eager"] if args.no_compile else ["eager", "compile"])
             for layout in ("contiguous", "channels_last")]
    rows, version = [], ""
    for model in args.only:
        batch, steps = WORK[model]
        times, peaks, planned = {side: Series() for side in [*ours, *modes]}, {}, {}
        for _ in range(args.rounds):
            for side in times:
                if side in ours:
                    run = run_galley(args, model, side[1])
                    planned[side] = run["planned"]
                else:
                    run = json_of([python, PEERS / "torch_train.py", model, batch, steps, *side, args.threads])
                    version = run["version"]
                times[side].add(run["times_ms"])
                peaks[side] = max(peaks.get(side, 0), run["peak_bytes"])
                say(f"training {model} {' '.join(side)}: {statistics.median(run['times_ms']):.1f} ms")
        mib = lambda value: round(value / 2**20, 1)
        for side in ours:
            known = [mode for mode in modes if side[1] == "bf16" or mode[2] == "f32"]
            best = min(known, key=lambda mode: times[mode].median)
            least = min(peaks[mode] for mode in known)
            rows.append((f"{model}, batch {batch}" + ("" if side[1] == "f32" else ", bf16"),
                         {"Galley": times[side].summary(mib=mib(peaks[side]), planned_mib=mib(planned[side])),
                          "PyTorch": times[best].summary(mode=" ".join(best if side[1] == "bf16" else best[:2]), mib=mib(least))}))
    record(args, "training", rows, [f"PyTorch {version}"])
