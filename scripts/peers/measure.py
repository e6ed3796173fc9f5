"""Shared by comparisons: runs processes that print measurements, computes medians with spread, records results."""
import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

import results
from results import number

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "scripts/peers"


def output_of(command, environment={}):
    """The stdout of a process with these additional environment variables. If it fails, the script ends with the messages of the
    process."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {result.returncode}:\n{result.stderr[-4000:]}")
    return result.stdout


def json_of(command, environment={}):
    """The JSON object in the last line of a process's output."""
    return json.loads(output_of(command, environment).splitlines()[-1])


def galley_benchmark(args, *words):
    """The one row of a galley-benchmark call."""
    return json_of([args.bin / "galley-benchmark", *words, "--threads", args.threads, "--format", "json", "--quiet"])["rows"][0]


class Series:
    """Milliseconds of one side of a comparison, by round."""

    def __init__(self):
        self.rounds = []

    def add(self, times_ms):
        self.rounds.append(times_ms)

    @property
    def median(self):
        return statistics.median(statistics.median(times) for times in self.rounds)

    def summary(self, **more):
        """A side of a row of data: the median, and the smallest and the largest median of a round."""
        medians = [statistics.median(times) for times in self.rounds]
        return {"ms": [round(value, 4) for value in (self.median, min(medians), max(medians))], **more}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def processor_has(flag):
    return re.search(rf"\b{flag}\b", pathlib.Path("/proc/cpuinfo").read_text()) is not None


def machine_class():
    """The processor's instructions for products and its vendor: rates of the same instructions differ (vdpbf16ps by four, 512-bit products
    by two)."""
    facts = dict(re.findall(r"^(\w[^:]*?)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    maker = {"GenuineIntel": "Intel", "AuthenticAMD": f"AMD family {facts.get('cpu family')}"}.get(facts.get("vendor_id"), "")
    for name, flag in (("AMX", "amx_tile"), ("AVX-512 with VNNI and bf16", "avx512_bf16"), ("AVX-512 with VNNI", "avx512_vnni"),
                       ("AVX-512", "avx512f"), ("AVX2", "avx2")):
        if processor_has(flag):
            return f"{name} ({maker})" if maker else name
    return platform.machine()


def record(args, part, rows, versions):
    """Stores the rows [(work, sides)] of a part with date, machine and command, and renders the pages."""
    results.store(part, [results.row_of(args, work, machine_class(), sorted(versions), sides) for work, sides in rows])
    print(f"{part}: stored in {results.file_of(part).relative_to(ROOT)}; the table is in {results.PAGE.relative_to(ROOT)}")


def parse_arguments(doc, parts, models):
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--part", default=",".join(parts), help="which comparisons: " + ", ".join(parts))
    options.add_argument("--only", default=",".join(models), help="which models: " + ", ".join(models))
    options.add_argument("--batch", default="1,16", help="batch sizes of inference and int8")
    options.add_argument("--rounds", type=int, default=3, help="number of rounds in which the sides take turns")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=3, help="seconds per cell of inference and int8 in each round")
    options.add_argument("--bf16",
                         action="store_true",
                         help="also run training and inference in bf16 on processors without bf16 instructions")
    options.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    options.add_argument("--work",
                         type=pathlib.Path,
                         help="folder to keep the peers' exported and quantized models and the images in, for later calls")
    options.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="Galley's programs")
    options.add_argument("--render", action="store_true", help="measure nothing: render the pages from docs/performance/data")
    args = options.parse_args()
    # The command to repeat the measurement elsewhere, without paths of this machine.
    shown = [
        word for i, word in enumerate(sys.argv)
        if i > 0 and not word.startswith(("--work", "--bin")) and sys.argv[i - 1] not in ("--work", "--bin")
    ]
    args.command = " ".join(["scripts/bench-peers", *shown])
    for name, known in (("part", parts), ("only", models)):
        chosen = getattr(args, name).split(",")
        for word in chosen:
            if word not in known:
                options.error(f"--{name} {word}: there are {', '.join(known)}")
        setattr(args, name, chosen)
    args.batch = [int(word) for word in args.batch.split(",")]
    return args
