"""Stores measurements as JSON in docs/performance/data/, and renders docs/performance/results.md and the table of README.md from it.

A file of data is {"rows": [...]}. Each row has `work` (the timed work), `machine` (machine_class()), `measured` (date), `threads`,
`rounds`, `versions`, `command`, and `sides`: name -> {"ms": [median, least, largest round], ...}. A new row replaces the old one of the
same work and machine.
"""
import datetime
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "docs/performance/data"
PAGE = ROOT / "docs/performance/results.md"
README = ROOT / "README.md"
README_MACHINE = "AVX-512 with VNNI and bf16 (AMD family 26)"
INSTRUCTIONS = ROOT / "tests/bench/instructions.json"

INTRODUCTION = """# Results

Generated from [data/](data/) by `scripts/bench-peers --render`; do not edit. [rules.md](rules.md) lists the decisions that measurements
led to, [notes.md](notes.md) explains them.

Compared programs ran as separate processes, in turns, with the same number of threads, on virtual machines with two cores. A time is the
median of the medians of the rounds; the least and the largest median of a round follow in parentheses. Speed is the other program's time
divided by Galley's, so more than 1 means that Galley is faster. Memory is the peak of resident memory; memory ratios are Galley's peak
divided by PyTorch's. The machine class names the instruction set and the maker of the processor; AMD's family 25 is Zen 3 and Zen 4,
family 26 is Zen 5. The last column of a table names the run below the table: date, versions and command.
"""


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def time(side):
    """'48.9 (48.1 .. 49.0)', or only the median after a single round."""
    median, least, largest = side["ms"]
    return number(median) if least == largest else f"{number(median)} ({number(least)} .. {number(largest)})"


def ratio(above, below):
    return f"{above['ms'][0] / below['ms'][0]:.2f}x"


# --- data

def file_of(part):
    return DATA / f"{part.replace(',', '').replace(' ', '_')}.json"


def load(part):
    path = file_of(part)
    return json.loads(path.read_text())["rows"] if path.exists() else []


def store(part, rows):
    """Merges rows into a part's data and renders the pages."""
    key = lambda row: (row["work"], row["machine"])
    kept = {key(row): row for row in load(part)}
    kept.update({key(row): row for row in rows})
    DATA.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in kept.values())
    file_of(part).write_text('{"rows": [\n' + lines + "\n]}\n")
    render()


# --- tables

def table(headings, rows, left=1):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * left + "--:|" * (len(headings) - left)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def by_machine(part, headings, cells_of, left=1):
    """One table per class of machine, each row with the number of its run, followed by the list of runs."""
    rows = load(part)
    if not rows:
        return ["Not measured yet."]
    machines = sorted({row["machine"] for row in rows}, key=lambda name: (-sum(row["machine"] == name for row in rows), name))
    runs, lines = [], []
    for machine in machines:
        cells = []
        for row in rows:
            if row["machine"] != machine:
                continue
            spread = f", {row['rounds']} rounds" if row.get("rounds") else ""
            versions = ", ".join(row["versions"]) + "; " if row["versions"] else ""
            run = f"{row['measured']}, {row['threads']} threads{spread}; {versions}`{row['command']}`"
            if run not in runs:
                runs.append(run)
            cells += [[*line, str(runs.index(run) + 1)] for line in cells_of(row)]
        lines += [f"{machine}:", "", *table([*headings, "run"], cells, left), ""]
    return [*lines, *(f"{i}. {run}" for i, run in enumerate(runs, 1))]


def training():
    def cells(row):
        ours, torch = row["sides"]["Galley"], row["sides"]["PyTorch"]
        return [[
            row["work"],
            time(ours),
            time(torch), torch["mode"],
            ratio(torch, ours),
            number(ours["mib"]),
            number(ours["planned_mib"]),
            number(torch["mib"]), f"{ours['mib'] / torch['mib']:.2f}x"
        ]]

    return by_machine(
        "training",
        ["training step", "Galley ms", "PyTorch ms", "its fastest mode", "speed", "Galley MiB", "planned MiB", "PyTorch MiB", "memory"],
        cells)


def text_training():
    def cells(row):
        ours, torch, installed = (row["sides"][side] for side in ("Galley", "PyTorch", "PyTorch as installed"))
        return [[row["work"], time(ours), time(torch), torch["mode"], ratio(torch, ours), time(installed), ratio(installed, ours),
                 number(ours["mib"]), number(ours["planned_mib"]), number(installed["mib"]), f"{ours['mib'] / installed['mib']:.2f}x"]]
    headings = ["training step", "Galley ms", "PyTorch ms", "its fastest mode", "speed", "PyTorch as installed ms", "speed", "Galley MiB",
                "planned MiB", "PyTorch as installed MiB", "memory"]
    return by_machine("text training", headings, cells)


def vision_training():
    def cells(row):
        ours, best, installed = (row["sides"][side] for side in ("Galley", "PyTorch channels_last", "PyTorch as installed"))
        return [[row["work"], time(ours), time(best), ratio(best, ours), time(installed), ratio(installed, ours), number(ours["mib"]),
                 number(best["mib"]), f"{ours['mib'] / best['mib']:.2f}x"]]
    headings = ["training step", "Galley ms", "PyTorch channels_last ms", "speed", "PyTorch as installed ms", "speed", "Galley planned MiB",
                "PyTorch MiB above its start", "memory"]
    return by_machine("vision training", headings, cells)


def ranks():
    def cells(row):
        sides = row["sides"]
        one, ddp, fsdp, part = (sides[side] for side in ("one rank", "ddp", "fsdp", "one rank, its part"))
        return [[row["work"], time(one), time(ddp), ratio(one, ddp), f"{ddp['ms'][0] / part['ms'][0]:.2f}x", time(fsdp),
                 f"{fsdp['ms'][0] / ddp['ms'][0]:.2f}x", time(sides["PyTorch ddp"]), ratio(sides["PyTorch ddp"], ddp),
                 time(sides["PyTorch fsdp"]), ratio(sides["PyTorch fsdp"], fsdp)]]
    headings = ["training step", "1 rank, 2 threads, ms", "2 ranks, ddp, ms", "speed against 1 rank", "time against a rank's part alone",
                "2 ranks, fsdp, ms", "time against ddp", "PyTorch DDP ms", "speed", "PyTorch FSDP2 ms", "speed"]
    return by_machine("ranks", headings, cells)


def text_decoding():
    peers = ("PyTorch", "CTranslate2", "llama.cpp")

    def cells(row):
        line = [row["work"], time(row["sides"]["Galley"])]
        for peer in peers:
            side = row["sides"].get(peer)
            line += [time(side), ratio(side, row["sides"]["Galley"])] if side else ["", ""]
        return [line]
    return by_machine("text decoding", ["work", "Galley ms", *(heading for peer in peers for heading in (f"{peer} ms", "speed"))], cells)


def inference(part, peers):
    def cells(row):
        sides = row["sides"]
        shown = lambda side: time(side) + (" " + side["mode"] if "mode" in side else "")
        line = [row["work"], shown(sides["Galley"])]
        for peer in peers:
            line += [shown(sides[peer]), ratio(sides[peer], sides["Galley"])] if peer in sides else ["", ""]
        return [line]
    headings = ["model", "Galley ms"]
    for peer in peers:
        headings += [f"{peer} ms", "speed"]
    return by_machine(part, headings, cells)


def int8():
    sides = ("Galley", "ONNX Runtime", "OpenVINO")

    def cells(row):
        def of(side):
            return row["sides"][side + " f32"], row["sides"][side + " int8"]
        lines = []
        for i, side in enumerate(sides):
            f32, integer = of(side)
            kind = " " + integer["mode"] if "mode" in integer else ""
            lines.append([
                row["work"] if i == 0 else "", side,
                time(f32),
                time(integer) + kind,
                ratio(f32, integer), f"{100 * integer['file_share']:.1f} %", "" if i == 0 else ratio(integer,
                                                                                                     of("Galley")[1])
            ])
        return lines
    return by_machine("int8", ["model", "program", "f32 ms", "int8 ms", "int8 gain", "file", "Galley's speed"], cells, left=2)


def loading():
    def cells(row):
        sides = row["sides"]
        best = max(sides["Pillow"]["images_per_s"], sides["decode_jpeg"]["images_per_s"])
        return [[
            row["work"], *(number(sides[name]["images_per_s"]) for name in ("Galley", "Pillow", "decode_jpeg")),
            f"{sides['Galley']['images_per_s'] / best:.2f}x"
        ]]
    return by_machine("data", ["workers", "Galley images/s", "torchvision, Pillow", "torchvision, decode_jpeg", "speed"], cells)


def shared(part):
    def cells(row):
        line = [row["work"]]
        for side in row["sides"].values():
            line += [time(side), f"{side['slowdown']:.2f}x" if "slowdown" in side else ""]
        return [line]
    rows = load(part)
    headings = ["work and busy processes"]
    for side in rows[0]["sides"] if rows else ():
        headings += [f"{side} ms", "of its quiet time"]
    return by_machine(part, headings, cells)


VERDICTS = ("same", "cannot tell", "faster", "slower")
VERDICT_HEADINGS = ["identical sides", "seconds each", "comparisons", *VERDICTS, "false", "at most (95 %)", "median difference", "largest"]


def verdict_cells(row):
    counts = row["counts"]
    return [
        f"{row['work']}, {row['base_ms']:.3g} ms",
        str(row["seconds"]),
        str(row["comparisons"]), *(str(counts[name]) for name in VERDICTS),
        f"{100 * (counts['faster'] + counts['slower']) / row['comparisons']:.0f} %", f"{100 * row['upper_limit']:.1f} %",
        f"{100 * row['median_difference']:.2f} %", f"{100 * row['largest_difference']:.2f} %"
    ]


def false_verdict_table(rows):
    return table(VERDICT_HEADINGS, [verdict_cells(row) for row in rows])


def false_verdicts():
    return by_machine("false verdicts", VERDICT_HEADINGS, lambda row: [verdict_cells(row)])


def profiles():
    lines = []
    for row in load("step profiles"):
        lines += [
            f"{row['work']}: {number(row['step_ms'])} ms, {row['gib']:.1f} GiB read or written, {row['gflops_per_s']:.0f} GFLOP/s; "
            f"{row['limit_percent']:.0f} % of the limit of "
            f"{row['machine_gflops_per_s']:.0f} GFLOP/s and {row['machine_gbytes_per_s']:.0f} GB/s.", "",
            f"{row['machine']}, {row['measured']}, {row['threads']} threads; `{row['command']}`", "",
            *table(["operator", "phase", "calls", "ms", "% of step", "GFLOP/s", "GB/s", "% of limit", "bound by"], [[
                op["type"], op["phase"],
                str(op["calls"]), f"{op['ms']:.1f}", f"{op['percent']:.1f}", f"{op['gflops_per_s']:.1f}", f"{op['gbytes_per_s']:.1f}",
                f"{op['limit_percent']:.0f}", op["bound"]
            ] for op in row["operators"]],
                   left=2), ""
        ]
    return lines[:-1] or ["Not measured yet."]


def instructions():
    lines = []
    for machine, counts in json.loads(INSTRUCTIONS.read_text()).items():
        lines += [
            f"{machine}; `scripts/count-instructions`:", "",
            *table(["kernel", "instructions per run"], [[f"`{case}`", f"{count:,}"] for case, count in counts.items()]), ""
        ]
    return lines[:-1]


SECTIONS = [
    ("Training steps",
     "Both sides take steps on one batch. Galley's memory is that of `galley-train` with its data loader. PyTorch's time is its fastest of "
     "eager and compile, "
     "contiguous and channels_last; its memory is the least of the modes.", training),
    ("Where a step's time goes",
     "The limit of an operator is the longer of two times: its least bytes at the measured memory bandwidth, and its operations at the "
     "measured peak. "
     "GFLOP/s count what a convolution takes by its definition, so Winograd convolutions exceed the peak; their share of the limit counts "
     "the operations that they execute. "
     "An operator that finds its inputs in a cache exceeds the memory bandwidth. Rows below 0.7 % of the step are left out.", profiles),
    ("Inference in f32", "The same random weights for all. PyTorch's time is the faster of eager and compile, channels_last.",
     lambda: inference("inference", ["ONNX Runtime", "OpenVINO", "PyTorch"])),
    ("Inference in bf16", "", lambda: inference("inference bf16", ["OpenVINO", "PyTorch"])),
    ("Inference in int8",
     "Each program compared with its own f32, with the same random weights and random calibration images; `file` is the size of the int8 "
     "model relative to its f32 file. "
     "ONNX Runtime's time is the faster of S8S8 and U8S8. Without VNNI, ONNX Runtime's U8S8 products may saturate in 16 bits (its "
     "`reduce_range` was off); Galley's products are exact "
     "unless `quantize.saturation: reduce` is set, which takes one bit from the weights.", int8),
    ("Training of language models", "GPT-2's transformer on batches of samples of 256 tokens, AdamW, gradients clipped to norm 1. "
     "PyTorch's time is its fastest of eager and compile with fused AdamW and a C library that keeps freed memory; \"as installed\" is "
     "eager without these two. bf16 rows compare with PyTorch in bf16 (autocast); their PyTorch as installed is f32.", text_training),
    ("Two ranks of one machine", "Two ranks with one thread each (mpirun, bound to cores) divide a batch; PyTorch's use gloo. \"A rank's "
     "part alone\" is half of the batch on one rank with one thread.", ranks),
    ("Encoders", "BERT-base with random weights, samples of 128 tokens without padding. int8: Galley's faster of static and dynamic "
     "quantization, ONNX Runtime's dynamic, OpenVINO's static (NNCF).",
     lambda: inference("text encoders", ["ONNX Runtime", "OpenVINO", "PyTorch"])),
    ("Text generation", "GPT-2 124M with random weights, one sequence. Galley's int8 and int4 are weight-only (int4: groups of 32), "
     "int8 dynamic rounds activations too, as does `precision.int8_activations=int8` (activations rounded); "
     "PyTorch's int8 is dynamic, llama.cpp's Q8_0 and Q4_0.", text_decoding),
    ("Detection, segmentation and optical flow", "One image, or pair of images, with the same random weights, scaled so that about as "
     "many candidates are left as in trained networks; outputs with post-processing. PyTorch's time is the faster of eager and compile, "
     "channels_last.", lambda: inference("vision", ["ONNX Runtime", "OpenVINO", "PyTorch"])),
    ("Training of detectors and segmentation", "SGD with momentum on random images.", vision_training),
    ("Loading JPEGs", "JPEGs of 500 x 375 pixels to batches of 64: random_resized_crop to 224, flip, normalize.", loading),
    ("Inference on a busy machine", "`scripts/shared-machine` measures while other processes compute all the time.",
     lambda: shared("shared machine, inference")),
    ("Training on a busy machine", "", lambda: shared("shared machine, training")),
    ("How often a verdict is false",
     "`galley-benchmark RECIPE --compare A A` compares identical commands; a verdict of faster or slower is false. The goal is at most 2 "
     "%. "
     "\"At most\" is the upper limit of the share, with 95 % confidence.", false_verdicts),
    ("Instruction counts",
     "Kernels run on one thread under valgrind, which shows programs a processor with AVX2. A count 2 % above its record is exit code 6.",
     instructions),
]


def page():
    blocks = [INTRODUCTION.rstrip()]
    for title, text, make in SECTIONS:
        blocks += [f"## {title}", *([wrapped(text)] if text else []), "\n".join(make())]
    return "\n\n".join(blocks) + "\n"


def wrapped(text, width=140):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def readme_table():
    """The README's comparison: training steps against PyTorch, and inference against its fastest mode, on one class of machine."""
    rows, runs = [], []
    for what, part in (("training step", "training"), ("inference, f32", "inference"), ("inference, bf16", "inference bf16")):
        for row in load(part):
            if row["machine"] != README_MACHINE:
                continue
            ours, torch = row["sides"]["Galley"], row["sides"]["PyTorch"]
            memory = f"{ours['mib'] / torch['mib']:.2f}x" if "mib" in ours else ""
            rows.append([what, row["work"], time(ours), time(torch), torch["mode"], ratio(torch, ours), memory])
            runs.append(row)
    if not runs:
        return []
    dates = sorted({row["measured"] for row in runs})
    versions = sorted({version for row in runs for version in row["versions"] if version.startswith("PyTorch")})
    note = (
        f"Machine: 2 cores of a Zen 5 in a virtual machine, {README_MACHINE}; {runs[0]['threads']} threads; "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; {', '.join(versions)} in "
        "its fastest mode, which is f32 in a row of bf16 where f32 was faster. Milliseconds are medians, with the least and the largest "
        "round in parentheses; memory is the peak of the "
        "process, Galley's divided by PyTorch's."
    )
    return [wrapped(note), "", *table(["what", "model", "Galley ms", "PyTorch ms", "its fastest mode", "speed", "memory"], rows, left=2)]


def replaced(text, name, lines):
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    return f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}" if found else text


def rendered():
    """{path: text} of all pages that are rendered from the data."""
    return {PAGE: page(), README: replaced(README.read_text(), "bench-peers", readme_table())}


def render():
    for path, text in rendered().items():
        path.write_text(text)


def row_of(args, work, machine, versions, sides):
    return {
        "work": work, "machine": machine, "measured": str(datetime.date.today()), "threads": args.threads, "rounds": args.rounds,
        "versions": list(versions), "command": args.command, "sides": sides
    }
