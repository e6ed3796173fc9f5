"""Training steps of GPTs against PyTorch, as installed and in its best tuned mode: in f32, and in bf16 on processors with bf16
instructions."""
import json
import pathlib
import statistics
import tempfile

from environment import environment
from measure import PEERS, Series, galley_benchmark, json_of, output_of, processor_has, record, say

WORK = {"gpt_10m": (12, 15), "gpt_30m": (4, 12), "gpt_124m": (2, 10)}  # model: batch of 256 tokens each, timed steps
LENGTH = 256
# glibc returns large tensors to the system after each use and gets them again, page by page, unless told otherwise.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}


def run_galley(args, model, precision):
    """Times steps on one batch, as PyTorch's script does, and measures the memory of training with its loader."""
    batch, steps = WORK[model]
    recipe = f"benchmark/{model}_synthetic"
    row = galley_benchmark(args, recipe, "what=train_step", f"batch={batch}", f"precision={precision}", f"stop.min_runs={steps}",
                           "stop.ci=100%")
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        output_of([args.bin / "galley-train", recipe, "-o", run, "train.duration=4 steps", f"precision={precision}", "--threads",
                   args.threads, "--quiet"])
        summary = json.loads((run / "result.json").read_text())
    return {"times_ms": row["runs_ms"], "peak_bytes": summary["peak_bytes"], "planned": summary["planned_peak_bytes"]}


def compare(args):
    python = environment("torch")
    precisions = ["f32", "bf16"] if args.bf16 or processor_has("avx512_bf16") else ["f32"]
    ours = [("galley", precision) for precision in precisions]
    compiled = [] if args.no_compile else ["compile"]
    modes = [("eager", "installed", "f32")] + [(mode, "tuned", precision) for precision in precisions for mode in ["eager", *compiled]]
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
                    run = json_of([python, PEERS / "torch_gpt.py", model, batch, LENGTH, steps, *side, args.threads],
                                  environment=TUNED if side[1] == "tuned" else {})
                    version = run["version"]
                times[side].add(run["times_ms"])
                peaks[side] = max(peaks.get(side, 0), run["peak_bytes"])
                say(f"training {model} {' '.join(side)}: {statistics.median(run['times_ms']):.1f} ms")
        rows += [row_of(model, side[1], times, peaks, planned[side]) for side in ours]
    record(args, "text training", rows, [f"PyTorch {version}"])


def row_of(model, precision, times, peaks, planned):
    """In f32 against PyTorch in f32; in bf16 against PyTorch in bf16."""
    mib = lambda value: round(value / 2**20, 1)
    side, installed = ("galley", precision), ("eager", "installed", "f32")
    best = min((mode for mode in times if mode[0] != "galley" and mode[-1] == precision), key=lambda mode: times[mode].median)
    work = f"{model}, {WORK[model][0]} x {LENGTH} tokens" + ("" if precision == "f32" else f", {precision}")
    return (work, {"Galley": times[side].summary(mib=mib(peaks[side]), planned_mib=mib(planned)),
                   "PyTorch": times[best].summary(mode=" ".join(best[:2]), mib=mib(peaks[best])),
                   "PyTorch as installed": times[installed].summary(mib=mib(peaks[installed]))})
