"""Writes a GPT-2 124M with random weights for the peers and for Galley.

usage: gpt2_export.py FOLDER     writes FOLDER/hub (config.json, model.safetensors, tokenizer.json), and FOLDER/KIND.gguf, FOLDER/ct2-KIND
The vocabulary is that of bytes and of filler tokens, so that no file has to be downloaded; a prompt of letters has one token a letter.
"""
import pathlib
import sys

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

PRODUCTS = {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}  # names of GGUF
folder = pathlib.Path(sys.argv[1])
hub = folder / "hub"
hub.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
config = GPT2Config()
model = GPT2LMHeadModel(config).eval()
model.save_pretrained(hub)
tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
tokens += [f"filler{number}" for number in range(config.vocab_size - len(tokens) - 1)] + ["<|endoftext|>"]
tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
special = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(hub)


def write_ctranslate2():
    from ctranslate2.converters import TransformersConverter
    for kind in ("float32", "int8"):
        TransformersConverter(str(hub)).convert(str(folder / f"ct2-{kind}"), quantization=kind, force=True)


def write_gguf():
    import gguf
    kinds = {"f32": gguf.GGMLQuantizationType.F32, "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    for name, kind in kinds.items():
        writer = gguf.GGUFWriter(str(folder / f"{name}.gguf"), "gpt2")
        writer.add_block_count(config.n_layer)
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(tokens) - 1) + [3])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(len(tokens) - 1)
        writer.add_eos_token_id(len(tokens) - 1)

        def add(target, source, product=False):
            value = state[source].T if product and "wte" not in source else state[source]
            value = numpy.ascontiguousarray(value, dtype=numpy.float32)
            if product and name != "f32":
                writer.add_tensor(target, gguf.quants.quantize(value, kind), raw_dtype=kind)
            else:
                writer.add_tensor(target, value)

        add("token_embd.weight", "transformer.wte.weight", product=True)
        add("position_embd.weight", "transformer.wpe.weight")
        for part in ("weight", "bias"):
            add(f"output_norm.{part}", f"transformer.ln_f.{part}")
            for block in range(config.n_layer):
                for target, source in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2")):
                    add(f"blk.{block}.{target}.{part}", f"transformer.h.{block}.{source}.{part}")
                for target, source in PRODUCTS.items():
                    add(f"blk.{block}.{target}.{part}", f"transformer.h.{block}.{source}.{part}", product=part == "weight")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


write_ctranslate2()
write_gguf()
