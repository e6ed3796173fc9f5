"""Training steps on two ranks of this machine, by strategy: against one rank with as many threads, and against PyTorch over gloo."""
import json
import pathlib
import statistics
import tempfile

from environment import environment
from measure import PEERS, Series, json_of, output_of, record, say

WORK = {"resnet50": (16, 6), "gpt_30m": (4, 8)}  # model: samples of a batch, timed steps
RANKS = 2
WARM_UP = 2
ROOT_MAY_RUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OURS = {"one rank": (1, []), "ddp": (RANKS, ["sharding=ddp"]), "fsdp": (RANKS, ["sharding=fsdp", "sharding.wrap=4M"]),
        "one rank, its part": (1, [])}


def run_galley(args, model, side):
    """Times of the steps of a run: of one rank with all threads, of ranks with one thread each, or of one rank's share alone."""
    ranks, overrides = OURS[side]
    batch, steps = WORK[model]
    part = side.endswith("part")
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        threads = RANKS if ranks == 1 and not part else 1
        command = [
            args.bin / "galley-train", f"benchmark/{model}_synthetic", "-o", run, f"train.duration={steps + WARM_UP} steps",
            f"train.batch={batch // RANKS if part else batch}", "log={every: 1 step, tensorboard: false}", f"threads={threads}", "--quiet",
            *overrides
        ]
        if ranks > 1:
            command = ["mpirun", "-np", ranks, "--oversubscribe", "--bind-to", "core", *command]
        output_of(command, environment=ROOT_MAY_RUN)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run / "result.json").read_text())
    times = [row["step_ms"] for row in rows if "step_ms" in row]
    return {"times_ms": times[WARM_UP:], "peak_bytes": summary["peak_bytes"]}


def compare(args):
    python = environment("torch", "torchvision")
    rows, version = [], ""
    for model in args.only:
        batch, steps = WORK[model]
        theirs = {f"PyTorch {strategy}": strategy for strategy in ("ddp", "fsdp")}
        times = {side: Series() for side in [*OURS, *theirs]}
        for _ in range(args.rounds):
            for side in times:
                if side in OURS:
                    run = run_galley(args, model, side)
                else:
                    run = json_of([python, PEERS / "torch_ranks.py", model, batch, steps, theirs[side], RANKS, 1])
                    version = run["version"]
                times[side].add(run["times_ms"])
                say(f"ranks {model} {side}: {statistics.median(run['times_ms']):.1f} ms")
        rows.append((f"{model}, {batch} samples", {side: series.summary() for side, series in times.items()}))
    record(args, "ranks", rows, [f"PyTorch {version}"])
