"""Text generation by GPT-2 124M, one sequence, against PyTorch, CTranslate2 and llama.cpp: a token after 128, and a prompt of 512."""
import pathlib
import statistics
import subprocess

from environment import environment
from measure import PEERS, Series, galley_benchmark, json_of, output_of, record, say
from models import work_folder

WORK = ["gpt2"]
RUNS = 5
INT8 = ["torch-int8", "ct2-int8", "llama-q8_0"]
WEIGHTS_IN_INT8 = ["quantize.method=weight_only", "quantize.weights.dtype=int8"]
# precision: the peers' sides, the options of galley-quantize, and those of galley-benchmark
PRECISIONS = {"f32": (["torch-f32", "ct2-float32", "llama-f32"], None, []),
              "int8": (INT8, WEIGHTS_IN_INT8, []),
              "int8, activations rounded": (INT8, WEIGHTS_IN_INT8, ["precision.int8_activations=int8"]),
              "int8 dynamic": (INT8, ["quantize.method=dynamic"], []),
              "int4": (["llama-q4_0"],
                       ["quantize.method=weight_only", "quantize.weights.dtype=int4", "quantize.weights.group_size=32"], [])}
PROGRAMS = {"torch": "PyTorch", "ct2": "CTranslate2", "llama": "llama.cpp"}


def compare(args):
    python = environment("torch", "transformers", "ctranslate2", "gguf")
    rows, versions = [], set()
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        say("llama.cpp is left out: llama_cpp is not installed (pip install llama-cpp-python builds it)")
        for peers, *_ in PRECISIONS.values():
            peers[:] = [side for side in peers if not side.startswith("llama")]
    with work_folder(args) as folder:
        folder = pathlib.Path(folder) / "gpt2"
        if not (folder / "q4_0.gguf").exists():
            output_of([python, PEERS / "gpt2_export.py", folder])
        weights = {precision: galley_weights(args, folder, precision) for precision in PRECISIONS}

        def run(side):
            """Milliseconds of decoding and of prefill."""
            if side in weights:
                words = [folder / "hub", f"weights={weights[side]}", f"benchmark.stop.max_time={args.seconds}s", *PRECISIONS[side][2]]
                kinds = ["what=decode", "tokens=128"], ["what=prefill", "tokens=512"]
                return [galley_benchmark(args, *words, *kind)["runs_ms"] for kind in kinds]
            result = json_of([python, PEERS / "gpt2_decode.py", side, folder, args.threads, RUNS])
            versions.add(result["version"])
            return [result["decode_ms"], result["prefill_ms"]]

        sides = [*PRECISIONS, *dict.fromkeys(side for peers, *_ in PRECISIONS.values() for side in peers)]
        times = {side: (Series(), Series()) for side in sides}
        for _ in range(args.rounds):
            for side, series in times.items():
                for one, milliseconds in zip(series, run(side)):
                    one.add(milliseconds)
                say(f"gpt2 {side}: {', '.join(f'{statistics.median(one.rounds[-1]):.2f}' for one in series)} ms")
        for number, work in enumerate(("next token after 128", "prompt of 512 tokens")):
            for precision, (peers, *_) in PRECISIONS.items():
                row = {"Galley": times[precision][number].summary()}
                row |= {PROGRAMS[side.split("-")[0]]: times[side][number].summary() for side in peers}
                rows.append((f"{work}, {precision}", row))
    record(args, "text decoding", rows, versions)


def galley_weights(args, folder, precision):
    """The file of Galley's weights; created in each call, since Galley changes."""
    words = PRECISIONS[precision][1]
    if words is None:
        return folder / "hub"
    path = folder / f"galley_{precision.replace(' ', '_').replace(',', '')}.safetensors"
    output_of([args.bin / "galley-quantize", folder / "hub", *words, "--quiet", "-o", path])
    return path
