#!/usr/bin/env python3
"""Makes hub folders of tiny decoders with random weights, as transformers saves them, and what transformers generates with them.

    python make_decoder_folders.py      (torch, transformers, tokenizers; the versions are in decoders.json)

  NAME/          config.json, generation_config.json, model.safetensors (one in shards)
  tokenizer/     tokenizer.json, tokenizer_config.json with a chat template: of all of them
  decoders.json  for each folder and prompt: the ids of the prompt, and the ids of greedy generation in float64, with the distance of the
  best
                 logit to the second; `logits` are those after the tokens `ids`; `chat` is the text of the chat template
"""
import json
import pathlib
import shutil

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

here = pathlib.Path(__file__).resolve().parent
torch.manual_seed(1)
PROMPTS = ["To be", "a fine day, and the sea", "x"]
NEW_TOKENS = 14
IDS = [5, 9, 40, 200, 7, 7, 31, 90, 12]
ROWS = 304  # of the embedding; the tokenizer has fewer tokens

text = (here / "make_decoder_folders.py").read_text()
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator([text],
                        trainers.BpeTrainer(vocab_size=300,
                                            special_tokens=["<|end|>", "<|user|>", "<|bot|>"],
                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
TEMPLATE = "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|bot|>' }}{{ m.content }}{{ eos_token }}{% endfor %}" \
           "{% if add_generation_prompt %}<|bot|>{% endif %}"
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
tokenizer.chat_template = TEMPLATE
shutil.rmtree(here / "tokenizer", ignore_errors=True)
tokenizer.save_pretrained(here / "tokenizer", save_jinja_files=False)

LLAMA = dict(vocab_size=ROWS,
             hidden_size=16,
             intermediate_size=24,
             num_hidden_layers=2,
             num_attention_heads=4,
             max_position_embeddings=64,
             initializer_range=0.3,
             bos_token_id=None)
GROUPED = LLAMA | dict(num_key_value_heads=2)
GPT = dict(vocab_size=ROWS, initializer_range=0.3, bos_token_id=None)
CONFIGS = {
    "gpt2": transformers.GPT2Config(**GPT, n_layer=2, n_head=2, n_embd=16, n_positions=64),
    "gpt_neo": transformers.GPTNeoConfig(**GPT,
                                         num_layers=2,
                                         num_heads=2,
                                         hidden_size=16,
                                         max_position_embeddings=64,
                                         window_size=4,
                                         attention_types=[[["global", "local"], 1]]),
    "llama": transformers.LlamaConfig(**GROUPED,
                                      tie_word_embeddings=True,
                                      rope_parameters=dict(rope_type="llama3",
                                                           rope_theta=10000.0,
                                                           factor=8.0,
                                                           low_freq_factor=1.0,
                                                           high_freq_factor=4.0,
                                                           original_max_position_embeddings=32)),
    "mistral": transformers.MistralConfig(**GROUPED, head_dim=6, sliding_window=5, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**(GROUPED | dict(head_dim=8)), tie_word_embeddings=False),
}
out = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompts": PROMPTS, "new_tokens": NEW_TOKENS,
    "ids": IDS, "folders": {}
}
for name, config in CONFIGS.items():
    config.eos_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for key, parameter in model.named_parameters():  # also biases and norms; strong layers, so that a tied head does not repeat the input
        if parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape) * (0.2 if parameter.shape[0] == ROWS else 0.9))
        else:
            parameter.data.copy_(torch.randn(parameter.shape) * 0.1 + (1.0 if key.endswith("weight") else 0.0))
    exact = transformers.AutoModelForCausalLM.from_config(config).eval()
    exact.load_state_dict(model.state_dict())
    exact = exact.double()
    results = []
    for prompt in PROMPTS:
        ids, margin = tokenizer(prompt)["input_ids"], float("inf")
        row = list(ids)
        for _ in range(NEW_TOKENS):
            with torch.no_grad():
                logits = exact(torch.tensor([row]), use_cache=False).logits[0, -1]
            logits[len(tokenizer):] = -float("inf")
            best = torch.topk(logits, 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            row.append(int(best.indices[0]))
        assert len(set(row[len(ids):])) >= 3 and margin > 1e-3, (name, row, margin)
        results.append({"ids": ids, "new": row[len(ids):], "margin": margin})
    with torch.no_grad():
        logits = exact(torch.tensor([IDS]), use_cache=False).logits
    # Two end tokens: the fifth new token of the second prompt, and one that never comes.
    unused = next(i for i in range(len(tokenizer)) if all(i not in r["new"] for r in results))
    ends = [unused, results[1]["new"][4]]
    shutil.rmtree(here / name, ignore_errors=True)
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends, do_sample=False)
    model.save_pretrained(here / name, max_shard_size="24KB" if name == "qwen3" else "1GB")
    out["folders"][name] = {"end_tokens": ends, "results": results, "logits": [round(float(v), 7) for v in logits[0, -1]]}
out["chat"] = tokenizer.apply_chat_template([{"role": "user", "content": "Hello there"}], tokenize=False, add_generation_prompt=True)
out["chat_turns"] = tokenizer.apply_chat_template(
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ANSWER"}, {"role": "user", "content": "b"}],
    tokenize=False,
    add_generation_prompt=True)
(here / "decoders.json").write_text(json.dumps(out) + "\n")
