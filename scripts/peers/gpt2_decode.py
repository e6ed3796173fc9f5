"""Times GPT-2 124M, one sequence: the next token after a prompt of 128 tokens, and reading a prompt of 512. One JSON line on stdout.

usage: gpt2_decode.py SIDE FOLDER THREADS RUNS
SIDE: torch-f32, torch-int8, ct2-float32, ct2-int8, llama-f32, llama-q8_0 or llama-q4_0. FOLDER: of gpt2_export.py.
"""
import json
import pathlib
import resource
import statistics
import sys
import time

side, folder, threads, runs = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
PROMPT, NEW, LONG = 128, 32, 512
ids = [7919 * t % 50000 for t in range(LONG)]
program, kind = side.split("-")


def pytorch():
    import torch
    from gpt_model import GPT, SIZES
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = GPT(*SIZES["gpt_124m"]).eval().requires_grad_(False)
    if kind == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)

    def run(length, new):
        """(seconds until the first token, seconds per further token)"""
        with torch.inference_mode():
            caches = [[] for _ in model.blocks]
            start = time.perf_counter()
            logits = model(torch.tensor([ids[:length]]), 0, caches)[:, -1:]
            first = time.perf_counter()
            for token in range(new):
                logits = model(logits.argmax(-1), length + token, caches)[:, -1:]
            return first - start, (time.perf_counter() - first) / max(new, 1)
    return run, f"PyTorch {torch.__version__}"


def ctranslate2():
    import ctranslate2 as library
    generator = library.Generator(str(folder / f"ct2-{kind}"), device="cpu", inter_threads=1, intra_threads=threads, compute_type=kind)
    vocabulary = json.loads((folder / "hub/tokenizer.json").read_text())["model"]["vocab"]
    names = {number: token for token, number in vocabulary.items()}
    prompt = [names[number] for number in ids]

    def seconds(length, new):
        start = time.perf_counter()
        generator.generate_batch([prompt[:length]], max_length=new, min_length=new, sampling_topk=1, include_prompt_in_result=False)
        return time.perf_counter() - start

    def run(length, new):
        first = seconds(length, 1)
        return first, (seconds(length, new + 1) - first) / new if new else 0
    return run, f"CTranslate2 {library.__version__}"


def llama():
    import llama_cpp
    model = llama_cpp.Llama(str(folder / f"{kind}.gguf"), n_ctx=1024, n_threads=threads, n_threads_batch=threads, n_batch=512,
                            verbose=False)

    def run(length, new):
        model.reset()
        start = time.perf_counter()
        model.eval(ids[:length])
        first = time.perf_counter()
        for token in range(new):
            model.eval([ids[token]])
        return first - start, (time.perf_counter() - first) / max(new, 1)
    return run, f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"


run, version = {"torch": pytorch, "ct2": ctranslate2, "llama": llama}[program]()
run(PROMPT, 8)
decode = [run(PROMPT, NEW)[1] * 1e3 for _ in range(runs)]
prefill = [run(LONG, 0)[0] * 1e3 for _ in range(runs)]
print(json.dumps({"version": version, "decode_ms": decode, "prefill_ms": prefill, "median_ms": statistics.median(decode),
                  "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
