"""Training steps of GPTs against PyTorch, as installed and in its best tuned mode: in f32, and in bf16 on processors with bf16
instructions."""
from environment import environment
from measure import PEERS, record
from steps import in_turns, precisions_of

WORK = {"gpt_10m": (12, 15), "gpt_30m": (4, 12), "gpt_124m": (2, 10)}  # model: batch of 256 tokens each, timed steps
LENGTH = 256
# glibc returns large tensors to the system after each use and gets them again, page by page, unless told otherwise.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}


def compare(args):
    python = environment("torch")
    compiled = [] if args.no_compile else ["compile"]
    modes = [("eager", "installed", "f32")]
    modes += [(mode, "tuned", precision) for precision in precisions_of(args) for mode in ["eager", *compiled]]
    rows, version = [], ""
    for model in args.only:
        batch, steps = WORK[model]
        times, peaks, planned, version = in_turns(
            args, model, WORK[model], modes,
            lambda side: [python, PEERS / "torch_gpt.py", model, batch, LENGTH, steps, *side, args.threads],
            lambda side: TUNED if side[1] == "tuned" else {})
        rows += [row_of(model, side[1], times, peaks, planned[side]) for side in planned]
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
