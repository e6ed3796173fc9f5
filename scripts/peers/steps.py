"""Training steps of Galley and PyTorch in turns, with their memory."""
import json
import pathlib
import statistics
import tempfile

from measure import Series, galley_benchmark, json_of, output_of, processor_has, say


def precisions_of(args):
    """bf16 too, where the processor has instructions for it or the user asks for it."""
    return ["f32", "bf16"] if args.bf16 or processor_has("avx512_bf16") else ["f32"]


def run_galley(args, model, batch, steps, precision):
    """Times steps on one batch, as PyTorch's script does, and measures the memory of training with its loader."""
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


def in_turns(args, model, work, modes, command_of, environment_of=lambda mode: {}):
    """Runs ("galley", precision) for each precision, and PyTorch in each mode, `args.rounds` times in turns. `work` is (batch, steps).
    Returns the times and the largest peak of each side, the planned peak of Galley's, and PyTorch's version."""
    ours = [("galley", precision) for precision in precisions_of(args)]
    times, peaks, planned, version = {side: Series() for side in [*ours, *modes]}, {}, {}, ""
    for _ in range(args.rounds):
        for side in times:
            if side in ours:
                run = run_galley(args, model, *work, side[1])
                planned[side] = run["planned"]
            else:
                run = json_of(command_of(side), environment=environment_of(side))
                version = run["version"]
            times[side].add(run["times_ms"])
            peaks[side] = max(peaks.get(side, 0), run["peak_bytes"])
            say(f"training {model} {' '.join(side)}: {statistics.median(run['times_ms']):.1f} ms")
    return times, peaks, planned, version
