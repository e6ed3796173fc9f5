"""Training steps against PyTorch: the best of eager and compile, contiguous and channels_last; in bf16 against its best of both
precisions."""
from environment import environment
from measure import PEERS, record
from steps import in_turns, precisions_of

WORK = {"resnet50": (16, 8), "mobilenet_v3_large": (32, 10), "cifar_resnet20": (128, 20)}  # model: batch, timed steps


def compare(args):
    python = environment("torch", "torchvision")
    modes = [(mode, layout, precision) for precision in precisions_of(args)
             for mode in (["eager"] if args.no_compile else ["eager", "compile"]) for layout in ("contiguous", "channels_last")]
    mib = lambda value: round(value / 2**20, 1)
    rows, version = [], ""
    for model in args.only:
        batch, steps = WORK[model]
        times, peaks, planned, version = in_turns(
            args, model, WORK[model], modes,
            lambda side: [python, PEERS / "torch_train.py", model, batch, steps, *side, args.threads])
        for side in planned:
            known = [mode for mode in modes if side[1] == "bf16" or mode[2] == "f32"]
            best = min(known, key=lambda mode: times[mode].median)
            least = min(peaks[mode] for mode in known)
            rows.append((f"{model}, batch {batch}" + ("" if side[1] == "f32" else ", bf16"),
                         {"Galley": times[side].summary(mib=mib(peaks[side]), planned_mib=mib(planned[side])),
                          "PyTorch": times[best].summary(mode=" ".join(best if side[1] == "bf16" else best[:2]), mib=mib(least))}))
    record(args, "training", rows, [f"PyTorch {version}"])
