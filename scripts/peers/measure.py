"""What the comparisons share: processes that print what they measured, medians with spread, and the tables of docs/performance.md."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "scripts/peers"
PAGE = ROOT / "docs/performance.md"


def output_of(command, threads=None):
    """What a process prints on stdout; its failure ends the script with its messages."""
    words = [str(word) for word in command]
    environment = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(words, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {result.returncode}:\n{result.stderr[-4000:]}")
    return result.stdout


def json_of(command, threads=None):
    """The object in the last line that a process prints."""
    return json.loads(output_of(command, threads).splitlines()[-1])


def galley_benchmark(args, *words):
    """The one row of a galley-benchmark call."""
    return json_of([args.bin / "galley-benchmark", *words, "--threads", args.threads, "--format", "json", "--quiet"])["rows"][0]


class Series:
    """Milliseconds of one side of a comparison, round after round."""

    def __init__(self):
        self.rounds = []

    def add(self, times_ms):
        self.rounds.append(times_ms)

    @property
    def median(self):
        return statistics.median(statistics.median(times) for times in self.rounds)

    def __str__(self):
        """The median, and the least and the largest median of a round."""
        medians = [statistics.median(times) for times in self.rounds]
        return number(self.median) if len(medians) == 1 else f"{number(self.median)} ({number(min(medians))} .. {number(max(medians))})"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def processor_has(flag):
    return re.search(rf"\b{flag}\b", pathlib.Path("/proc/cpuinfo").read_text()) is not None


def machine_class():
    """Its instructions for products, and who made it: at the same names their rates differ by factors (vdpbf16ps by four, products of 512 bits by two)."""
    facts = dict(re.findall(r"^(\w[^:]*?)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    maker = {"GenuineIntel": "Intel", "AuthenticAMD": f"AMD family {facts.get('cpu family')}"}.get(facts.get("vendor_id"), "")
    for name, flag in (("AMX", "amx_tile"), ("AVX-512 with VNNI and bf16", "avx512_bf16"), ("AVX-512 with VNNI", "avx512_vnni"), ("AVX-512", "avx512f"), ("AVX2", "avx2")):
        if processor_has(flag):
            return f"{name} ({maker})" if maker else name
    return platform.machine()


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def merged(old, headings, rows):
    """Rows by their first cell and their class of machine: new ones take the place of old ones, old ones of the same columns stay."""
    key = lambda row: (row[0], row[-1].partition(", ")[2])
    kept = {}
    lines = [line for line in old.splitlines() if line.startswith("|")]
    if lines and cells(lines[0]) == headings:
        kept = {key(cells(line)): cells(line) for line in lines[2:]}
    return list({**kept, **{key(row): row for row in rows}}.values())


def write_table(args, part, headings, rows, versions):
    """Prints a part's table and puts it between the part's markers, with when, where and how it was measured; rows that were not measured
    now stay, each with its own date."""
    headings = [*headings, "measured"]
    rows = [[*row, f"{datetime.date.today()}, {machine_class()}"] for row in rows]
    begin, end = f"<!-- bench-peers {part} -->", f"<!-- /bench-peers {part} -->"
    page = PAGE.read_text()
    if begin not in page:
        page += f"\n## Peers: {part}\n\n{begin}\n{end}\n"
    head, _, rest = page.partition(begin)
    old, _, tail = rest.partition(end)
    table = ["| " + " | ".join(headings) + " |", "|---|" + "--:|" * (len(headings) - 2) + "---|"]
    table += ["| " + " | ".join(row) + " |" for row in merged(old, headings, rows)]
    note = (f"{args.threads} threads; medians of {args.rounds} rounds in which the sides took turns, and the least and the largest round; {', '.join(versions)}; "
            f"`{args.command}`")
    print(note, "", *table, sep="\n")
    PAGE.write_text(f"{head}{begin}\n{note}\n\n" + "\n".join(table) + f"\n{end}{tail}")


def parse_arguments(doc, parts, models):
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--part", default=",".join(parts), help="which comparisons: " + ", ".join(parts))
    options.add_argument("--only", default=",".join(models), help="which models: " + ", ".join(models))
    options.add_argument("--batch", default="1,16", help="of inference and int8")
    options.add_argument("--rounds", type=int, default=3, help="how often the sides take turns")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=3, help="for a cell of inference and int8 in each round")
    options.add_argument("--bf16", action="store_true", help="training and inference in bf16 too, where the processor has no instructions for it")
    options.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    options.add_argument("--work", type=pathlib.Path, help="keep the peers' exported and quantized models and the images here, and use those that are there")
    options.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="Galley's programs")
    args = options.parse_args()
    # What repeats it elsewhere: without the places of this machine.
    shown = [word for i, word in enumerate(sys.argv) if i > 0 and not word.startswith(("--work", "--bin")) and sys.argv[i - 1] not in ("--work", "--bin")]
    args.command = " ".join(["scripts/bench-peers", *shown])
    for name, known in (("part", parts), ("only", models)):
        chosen = getattr(args, name).split(",")
        for word in chosen:
            if word not in known:
                options.error(f"--{name} {word}: there are {', '.join(known)}")
        setattr(args, name, chosen)
    args.batch = [int(word) for word in args.batch.split(",")]
    return args
