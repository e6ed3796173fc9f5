#!/usr/bin/env python3
"""Exports the hub folders of ../hub, checks the files by onnx.checker and runs them in ONNX Runtime against the results of
transformers; then stores some of them in exported/, without metadata, as what tests/onnx/models/text_export_test.cpp expects.

    python check_exported.py [--bin DIR]      (build/bin with galley-weights and galley-predict; onnx, onnxruntime, numpy, safetensors)

Encoders: all outputs, of whole batches and of a part. Decoders: the prompt, then one token at a time with the keys and values of earlier
ones, alone and as a batch that is padded on the left, gives the tokens of transformers and those of galley-predict; so do whole sequences
without them. Decoders with int8 weights, a tied table among them, give the logits of galley-predict; ONNX Runtime's optimizations, which
round activations too, are off there. Exit code 1 if anything differs.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

here = pathlib.Path(__file__).resolve().parent
hub = here.parent / "hub"
parser = argparse.ArgumentParser()
parser.add_argument("--bin", type=pathlib.Path, default=here.parents[2] / "build/bin")
binaries = parser.parse_args().bin
STORED = ("bert_classes", "roberta_tokens", "gpt2", "llama")
BOUND = 1e-5
folder = pathlib.Path(tempfile.mkdtemp())
failed = []


def run(tool, *words):
    done = subprocess.run([binaries / tool, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{tool}: {done.stderr}")
    return done.stdout


def export(source, *words, optimized=True):
    path = folder / "m.onnx"
    run("galley-weights", "export", source, "-o", path, *words)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return model, onnxruntime.InferenceSession(path, options)


def check(what, good, value=""):
    print(f"{what:60} {value if isinstance(value, str) else f'{value:.1e}'}{'' if good else '   DIFFERS'}")
    if not good:
        failed.append(what)


def distance(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return float(numpy.abs(a - b).max() / max(1.0, float(numpy.abs(b).max())))


def store(name, model):
    if name not in STORED:
        return
    del model.metadata_props[:]
    (here / "exported").mkdir(exist_ok=True)
    onnx.save(model, here / "exported" / f"{name}.onnx")


def encoder(name):
    model, session = export(hub / name)
    expected = load_file(hub / name / "expected.safetensors")
    outputs = [output.name for output in session.get_outputs()]
    for rows in (3, 1):
        got = session.run(None, {i.name: expected[i.name][:rows] for i in session.get_inputs()})
        for key, value in zip(outputs, got):
            d = distance(value, expected[key][:rows])
            check(f"{name} {key}, {rows} samples", d <= BOUND, d)
    store(name, model)


class Steps:
    """A decoder whose keys and values go from run to run."""

    def __init__(self, session):
        self.session, self.outputs, self.past, self.mask = session, [o.name for o in session.get_outputs()], None, None

    def logits(self, tokens, mask=None):
        mask = numpy.ones_like(tokens) if mask is None else mask
        self.mask = mask if self.mask is None else numpy.concatenate([self.mask, mask], 1)
        positions = numpy.maximum(numpy.cumsum(self.mask, 1) - 1, 0)[:, -tokens.shape[1]:]
        feed = {"input_ids": tokens, "attention_mask": self.mask, "position_ids": positions}
        for i in self.session.get_inputs():
            if i.name.startswith("past"):
                empty = (len(tokens), i.shape[1], 0, i.shape[3])
                feed[i.name] = numpy.zeros(empty, numpy.float32) if self.past is None else self.past[i.name]
        made = dict(zip(self.outputs, self.session.run(None, feed)))
        self.past = {key.replace("present", "past_key_values"): value for key, value in made.items() if key.startswith("present")}
        return made["logits"][:, -1]


def decoder(name, want, decoders, tokens_of):
    model, session = export(hub / name)
    vocabulary, count = tokens_of, decoders["new_tokens"]
    d = distance(Steps(session).logits(numpy.array([decoders["ids"]]))[0], numpy.array(want["logits"], numpy.float32))
    check(f"{name} logits", d <= BOUND, d)
    prompts, wanted = [r["ids"] for r in want["results"]], [r["new"] for r in want["results"]]
    longest = max(map(len, prompts))
    padded = numpy.array([[0] * (longest - len(p)) + p for p in prompts])
    mask = numpy.array([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    for batch in [[0], [1], [2], [0, 1, 2]]:
        steps, rows = Steps(session), [[] for _ in batch]
        logits = steps.logits(padded[batch], mask[batch])
        for step in range(count):
            best = logits[:, :vocabulary].argmax(1)
            for row, token in zip(rows, best):
                row.append(int(token))
            if step + 1 < count:
                logits = steps.logits(best[:, None])
        check(f"{name} tokens of prompts {batch}", rows == [wanted[i] for i in batch])
    complete = folder / name
    shutil.copytree(hub / name, complete)
    shutil.copytree(hub / "tokenizer", complete, dirs_exist_ok=True)
    for prompt, new in zip(decoders["prompts"], wanted):
        line = json.loads(run("galley-predict", complete, "--prompt", prompt, "--format", "json", f"generate.max_new_tokens={count}",
                              "generate.end_tokens=[]"))
        check(f"{name} tokens of galley-predict", line["tokens"] == new)
    store(name, model)
    model, session = export(hub / name, "--no-cache")
    row = list(prompts[1])
    for _ in range(count):
        row.append(int(Steps(session).logits(numpy.array([row]))[0, :vocabulary].argmax()))
    check(f"{name} tokens without earlier keys and values", row[len(prompts[1]):] == wanted[1])
    quantized = folder / f"{name}.int8.safetensors"
    run("galley-quantize", hub / name, "method=weight_only", "-o", quantized)
    model, session = export(hub / name, f"weights={quantized}", optimized=False)
    save_file({"input_ids": numpy.array([prompts[1]])}, folder / "ids.safetensors")
    run("galley-predict", hub / name, f"weights={quantized}", "--tensors", folder / "ids.safetensors", "-o", folder / "out.safetensors")
    d = distance(Steps(session).logits(numpy.array([prompts[1]]))[0], load_file(folder / "out.safetensors")["logits"][0, -1])
    check(f"{name} logits of int8 weights", d <= BOUND, d)
    integers = {i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.INT8}
    tied = json.loads((hub / name / "config.json").read_text()).get("tie_word_embeddings", True)
    check(f"{name} has an int8 table if it is tied", any("wte.weight" in i or "embed_tokens.weight" in i for i in integers) == tied)


for path in sorted(hub.iterdir()):
    if (path / "expected.safetensors").exists() and path.name != "bert_old":
        encoder(path.name)
decoders = json.loads((hub / "decoders.json").read_text())
tokens = len(json.loads((hub / "tokenizer/tokenizer.json").read_text())["model"]["vocab"])
for name, want in decoders["folders"].items():
    decoder(name, want, decoders, tokens)
shutil.rmtree(folder)
print(f"{len(failed)} differences; onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")
sys.exit(bool(failed))
