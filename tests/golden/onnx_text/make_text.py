#!/usr/bin/env python3
"""Makes the ONNX files of models of text in this folder, and beside each transformers' results for it, computed in float64:
NAME.safetensors holds inputs and outputs by their names.

    python make_text.py [NAME ...]      (torch, transformers, onnx, onnxscript, safetensors; the versions are in VERSIONS)

  bert, distilbert, roberta        encoders with a head, exported from a trace (dynamo=False), as optimum exports; attention by torch's
                                   operator
  bert_eager                       with attention written as products
  bert_dynamo, roberta_dynamo      exported by torch.export (dynamo=True)
  gpt2, llama, qwen3, phi          decoders that continue earlier tokens: past_key_values.N.key, present.N.key. NAME.safetensors holds the
                                   logits after `ids`, and for each prompt (prompt.0 ...) the ids of greedy generation (new.0 ...). phi
                                   rotates a part of each head
  llama_dynamo, qwen3_dynamo       the same, exported by torch.export
  falcon                           the same; one head of keys and values serves all queries
  gpt_neo, gpt_neo_dynamo          the same; their masks are parts of a table of the context's size
The weights are random.
"""
import pathlib
import sys
import warnings

import onnx
import safetensors.torch
import torch
import transformers
from transformers import DynamicCache

here = pathlib.Path(__file__).resolve().parent
warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
SIZES = dict(vocab_size=40,
             hidden_size=8,
             num_hidden_layers=2,
             num_attention_heads=2,
             intermediate_size=12,
             max_position_embeddings=40,
             type_vocab_size=2)
PROMPTS, NEW_TOKENS = [[5, 9, 40, 7], [31], [2, 3, 5, 8, 13, 21, 34, 55, 1, 4, 6, 10, 16, 26, 42, 11, 53, 7, 60, 20]], 12


class Named(torch.nn.Module):
    """A model with inputs by position and a tuple of outputs, as exporters need them."""

    def __init__(self, model, inputs, outputs):
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *values):
        made = self.model(**dict(zip(self.inputs, values)))
        return tuple(made[name] for name in self.outputs)


class Cached(torch.nn.Module):
    """A decoder whose earlier keys and values are inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask, positions, *past):
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        present = [x for layer in made.past_key_values.layers for x in (layer.keys, layer.values)]
        return (made.logits, *present)


def randomize(model):
    torch.manual_seed(3)
    model.eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.normal_(1 if key.endswith("weight") and p.dim() == 1 else 0, 0.4 if p.dim() > 1 else 0.1)
        model.tie_weights()
    return model


def finish(path):
    """Removes the exporter's notes (stack traces)."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for values in (model.graph.value_info, model.graph.input, model.graph.output, model.graph.initializer):
        for value in values:
            value.doc_string = ""
            del value.metadata_props[:]
    del model.graph.value_info[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def save(name, tensors):
    safetensors.torch.save_file({key: value.contiguous() for key, value in tensors.items()}, here / f"{name}.safetensors")


def encoder(name, make, config, outputs, types=True, dynamo=False, attention="sdpa"):
    config._attn_implementation = attention
    model = randomize(make(config))
    torch.manual_seed(4)
    ids = torch.randint(2, 40, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    mask[2, 8:] = 0
    ids[mask == 0] = config.pad_token_id
    feed = {"input_ids": ids, "attention_mask": mask}
    if types:
        feed["token_type_ids"] = (torch.arange(9) > 3).long().expand(3, 9) * mask
    wrapped, path = Named(model, list(feed), outputs).eval(), here / f"{name}.onnx"
    names = dict(input_names=list(feed), output_names=outputs)
    if dynamo:
        dims = {0: torch.export.Dim("batch_size", max=64), 1: torch.export.Dim("sequence_length", max=36)}
        torch.onnx.export(wrapped, tuple(feed.values()), path, dynamo=True,
                          dynamic_shapes={"values": tuple(dims for _ in feed)}, external_data=False, verbose=False, **names)
    else:
        axes = {0: "batch_size", 1: "sequence_length"}
        torch.onnx.export(wrapped, tuple(feed.values()), path, dynamo=False,
                          dynamic_axes={key: axes for key in [*feed, *outputs]}, opset_version=17, **names)
    finish(path)
    with torch.no_grad():
        made = model.double()(**feed)
    save(name, {**feed, **{key: made[key].float() for key in outputs}})


def decoder(name, make, config, heads, width, dynamo=False):
    config._attn_implementation = "eager"
    config.eos_token_id = config.bos_token_id = None
    model = randomize(make(config))
    layers, path = config.num_hidden_layers, here / f"{name}.onnx"
    ids = torch.tensor([[5, 9, 40, 7]])
    past = [torch.zeros(1, heads, 3, width) for _ in range(2 * layers)]
    feed = (ids, torch.ones(1, 7, dtype=torch.long), torch.arange(3, 7)[None], *past)
    ends = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *[f"past_key_values.{end}" for end in ends]]
    outputs = ["logits", *[f"present.{end}" for end in ends]]
    axes = {name: {0: "batch_size", 1: "sequence_length"} for name in ("input_ids", "position_ids", "logits")}
    axes["attention_mask"] = {0: "batch_size", 1: "past_sequence_length + sequence_length"}
    for end in ends:
        axes[f"past_key_values.{end}"] = {0: "batch_size", 2: "past_sequence_length"}
        axes[f"present.{end}"] = {0: "batch_size", 2: "past_sequence_length + sequence_length"}
    if dynamo:
        tokens = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
        shapes = (tokens, tokens, tokens, tuple({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO} for _ in past))
        feed = tuple(torch.cat([x, x]) for x in feed)  # a size of 1 would be fixed
        torch.onnx.export(Cached(model).eval(), feed, path, dynamo=True, input_names=inputs, output_names=outputs, dynamic_shapes=shapes,
                          external_data=False, verbose=False)
    else:
        torch.onnx.export(Cached(model).eval(), feed, path, dynamo=False, input_names=inputs, output_names=outputs,
                          dynamic_axes=axes, opset_version=17)
    finish(path)
    exact, saved = model.double(), {"ids": ids}
    with torch.no_grad():
        saved["logits"] = exact(ids, use_cache=False).logits.float()
        for i, prompt in enumerate(PROMPTS):
            row, margin = list(prompt), float("inf")
            for _ in range(NEW_TOKENS):
                best = torch.topk(exact(torch.tensor([row]), use_cache=False).logits[0, -1], 2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                row.append(int(best.indices[0]))
            assert margin > 1e-3 and len(set(row[len(prompt):])) >= 3, (name, margin, row)
            saved[f"prompt.{i}"], saved[f"new.{i}"] = torch.tensor(prompt), torch.tensor(row[len(prompt):])
    save(name, saved)


t = transformers
ROBERTA = dict(pad_token_id=1, layer_norm_eps=1e-5)
DISTIL = t.DistilBertConfig(vocab_size=40, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=40)
LLAMA = t.LlamaConfig(vocab_size=64,
                      hidden_size=16,
                      intermediate_size=24,
                      num_hidden_layers=2,
                      num_attention_heads=4,
                      num_key_value_heads=2,
                      max_position_embeddings=64)
QWEN3 = t.Qwen3Config(vocab_size=64,
                      hidden_size=16,
                      intermediate_size=24,
                      num_hidden_layers=2,
                      num_attention_heads=4,
                      num_key_value_heads=2,
                      head_dim=6,
                      max_position_embeddings=64)
PHI = t.PhiConfig(vocab_size=64,
                  hidden_size=16,
                  intermediate_size=24,
                  num_hidden_layers=2,
                  num_attention_heads=2,
                  partial_rotary_factor=0.5,
                  max_position_embeddings=64)
FALCON = t.FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, multi_query=True, alibi=False,
                        parallel_attn=False)
NEO = t.GPTNeoConfig(vocab_size=64,
                     hidden_size=16,
                     intermediate_size=24,
                     num_layers=2,
                     num_heads=2,
                     attention_types=[[["global", "local"], 1]],
                     window_size=4,
                     max_position_embeddings=64)
FILES = {
    "bert": lambda n: encoder(n, t.BertForSequenceClassification, t.BertConfig(**SIZES), ["logits"]),
    "bert_eager": lambda n: encoder(n, t.BertForSequenceClassification, t.BertConfig(**SIZES), ["logits"], attention="eager"),
    "bert_dynamo": lambda n: encoder(n, t.BertForTokenClassification, t.BertConfig(**SIZES), ["logits"], dynamo=True),
    "distilbert": lambda n: encoder(n, t.DistilBertForQuestionAnswering, DISTIL, ["start_logits", "end_logits"], types=False),
    "roberta": lambda n: encoder(n, t.RobertaForMaskedLM, t.RobertaConfig(**(SIZES | ROBERTA)), ["logits"], types=False),
    "roberta_dynamo": lambda n: encoder(n, t.RobertaForMaskedLM, t.RobertaConfig(**(SIZES | ROBERTA)), ["logits"], types=False,
                                        dynamo=True),
    "gpt2": lambda n: decoder(n, t.GPT2LMHeadModel, t.GPT2Config(vocab_size=64, n_layer=2, n_head=2, n_embd=16, n_positions=64), 2, 8),
    "llama": lambda n: decoder(n, t.LlamaForCausalLM, LLAMA, 2, 4),
    "qwen3": lambda n: decoder(n, t.Qwen3ForCausalLM, QWEN3, 2, 6),
    "phi": lambda n: decoder(n, t.PhiForCausalLM, PHI, 2, 8),
    "falcon": lambda n: decoder(n, t.FalconForCausalLM, FALCON, 1, 4),
    "llama_dynamo": lambda n: decoder(n, t.LlamaForCausalLM, LLAMA, 2, 4, dynamo=True),
    "gpt_neo": lambda n: decoder(n, t.GPTNeoForCausalLM, NEO, 2, 8),
    "gpt_neo_dynamo": lambda n: decoder(n, t.GPTNeoForCausalLM, NEO, 2, 8, dynamo=True),
    "qwen3_dynamo": lambda n: decoder(n, t.Qwen3ForCausalLM, QWEN3, 2, 6, dynamo=True),
}
for name in sys.argv[1:] or FILES:
    FILES[name](name)
(here / "VERSIONS").write_text("".join(f"{m.__name__} {m.__version__}\n" for m in (torch, transformers, onnx)))
