#!/usr/bin/env python3
"""Makes the hub folder phi3, whose rotary positions are in a part of each head, and adds its results to decoders.json.

    python make_phi3.py      (after make_decoder_folders.py, which describes the files; the same packages)
"""
import json
import pathlib
import shutil

import torch
import transformers

here = pathlib.Path(__file__).resolve().parent
torch.manual_seed(2)
transformers.logging.set_verbosity_error()
out = json.loads((here / "decoders.json").read_text())
tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(here / "tokenizer")
config = transformers.Phi3Config(vocab_size=304,
                                 hidden_size=24,
                                 intermediate_size=20,
                                 num_hidden_layers=2,
                                 num_attention_heads=4,
                                 num_key_value_heads=2,
                                 max_position_embeddings=64,
                                 original_max_position_embeddings=64,
                                 tie_word_embeddings=True,
                                 sliding_window=7,
                                 rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
                                 bos_token_id=None,
                                 eos_token_id=None,
                                 pad_token_id=None)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
for key, parameter in model.named_parameters():
    if parameter.dim() > 1:
        parameter.data.copy_(torch.randn(parameter.shape) * (0.2 if parameter.shape[0] == config.vocab_size else 0.6))
    else:
        parameter.data.copy_(torch.randn(parameter.shape) * 0.1 + 1.0)
exact = transformers.AutoModelForCausalLM.from_config(config).eval()
exact.load_state_dict(model.state_dict())
exact = exact.double()
results = []
for prompt in out["prompts"]:
    ids, margin = tokenizer(prompt)["input_ids"], float("inf")
    row = list(ids)
    for _ in range(out["new_tokens"]):
        with torch.no_grad():
            logits = exact(torch.tensor([row]), use_cache=False).logits[0, -1]
        logits[len(tokenizer):] = -float("inf")
        best = torch.topk(logits, 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        row.append(int(best.indices[0]))
    assert len(set(row[len(ids):])) >= 3 and margin > 1e-3, (row, margin)
    results.append({"ids": ids, "new": row[len(ids):], "margin": margin})
with torch.no_grad():
    logits = exact(torch.tensor([out["ids"]]), use_cache=False).logits
unused = next(i for i in range(len(tokenizer)) if all(i not in r["new"] for r in results))
ends = [unused, results[1]["new"][4]]
shutil.rmtree(here / "phi3", ignore_errors=True)
model.generation_config = transformers.GenerationConfig(eos_token_id=ends, do_sample=False)
model.save_pretrained(here / "phi3")
out["folders"]["phi3"] = {"end_tokens": ends, "results": results, "logits": [round(float(v), 7) for v in logits[0, -1]]}
(here / "decoders.json").write_text(json.dumps(out) + "\n")
