"""Detection, segmentation and optical flow: inference of one image against ONNX Runtime, OpenVINO and PyTorch on the same weights, and
training steps against PyTorch."""
import statistics

from measure import PEERS, Series, galley_benchmark, json_of, output_of, record, say
from models import python, work_folder

MODELS = ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "lraspp_mobilenet_v3_large",
          "deeplabv3_mobilenet_v3_large", "raft_small"]
TRAINING = {"ssdlite320_mobilenet_v3_large": (8, 4), "deeplabv3_mobilenet_v3_large": (4, 4)}  # model: batch, timed steps
# torch.compile takes more than a minute for RAFT's updates and gains nothing
NOT_COMPILED = ["raft_small"]
ENGINES = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino", "eager": "eager", "compile": "compile"}


def recipe_of(folder, name, settings=""):
    path = folder / f"{name}.yaml"
    path.write_text(f"recipe: 1\nname: {name}\nmodel: {{type: {name}{settings}}}\n"
                    "train: {duration: 4 steps, optimizer: {type: sgd, lr: 0.01, momentum: 0.9}}\n")
    return path


def compare(args):
    with work_folder(args) as folder:
        rows, versions = [], set()
        for name in args.only:
            rows.append(compare_inference(args, folder, name, versions))
        record(args, "vision", rows, versions)
        rows, versions = [], set()
        for name in args.only:
            if name in TRAINING:
                rows.append(compare_training(args, folder, name, versions))
        if rows:
            record(args, "vision training", rows, versions)


def compare_inference(args, folder, name, versions):
    weights, onnx = folder / f"{name}.pth", folder / f"{name}.onnx"
    if not onnx.exists():
        say(f"making {onnx.name}")
        output_of([python(), PEERS / "vision_export.py", name, weights, onnx])
    recipe = recipe_of(folder, name)
    skipped = ["compile"] if args.no_compile or name in NOT_COMPILED else []
    times = {side: Series() for side in ["Galley", *ENGINES] if side not in skipped}
    for _ in range(args.rounds):
        for side in times:
            if side == "Galley":
                milliseconds = galley_benchmark(args, recipe, f"weights={weights}", "what=forward", "batch=1",
                                                f"benchmark.stop.max_time={args.seconds}s")["runs_ms"]
            else:
                result = json_of([python(), PEERS / "vision_infer.py", name, ENGINES[side], onnx, args.threads, args.seconds])
                milliseconds = result["times_ms"]
                versions.add(result["version"])
            times[side].add(milliseconds)
            say(f"{name} {side}: {statistics.median(milliseconds):.2f} ms")
    torch = min((side for side in ("eager", "compile") if side in times), key=lambda side: times[side].median)
    return name, {**{side: times[side].summary() for side in ("Galley", "ONNX Runtime", "OpenVINO")},
                  "PyTorch": times[torch].summary(mode=torch)}


def compare_training(args, folder, name, versions):
    batch, steps = TRAINING[name]
    recipe = recipe_of(folder, name, ", aux_loss: true" if name.startswith("deeplab") else "")
    layouts = ("contiguous", "channels_last")
    times, grown = {mode: Series() for mode in ("Galley", *layouts)}, {}
    for _ in range(args.rounds):
        for mode in times:
            if mode == "Galley":
                row = galley_benchmark(args, recipe, "what=train_step", f"batch={batch}", f"stop.min_runs={steps}", "stop.ci=100%")
                result = {"times_ms": row["runs_ms"], "grown_bytes": row["planned_bytes"]}
            else:
                result = json_of([python(), PEERS / "vision_train.py", name, batch, steps, mode, args.threads])
                versions.add(result["version"])
            times[mode].add(result["times_ms"])
            grown[mode] = max(grown.get(mode, 0), result["grown_bytes"])
            say(f"{name} training, {mode}: {statistics.median(result['times_ms']):.1f} ms")
    mib = lambda mode: round(grown[mode] / 2**20, 1)
    return f"{name}, batch {batch}", {"Galley": times["Galley"].summary(mib=mib("Galley")),
                                      "PyTorch channels_last": times["channels_last"].summary(mib=mib("channels_last")),
                                      "PyTorch as installed": times["contiguous"].summary(mib=mib("contiguous"))}
