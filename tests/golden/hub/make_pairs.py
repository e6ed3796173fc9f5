"""Pairs of texts for the folder bert_classes: their ids, types and logits by transformers, in bert_classes/pairs.json.

Run: python make_pairs.py   (PyTorch, transformers; their versions are in VERSIONS). Needs what make_hub.py wrote.
The last pairs are longer than the model's 24 tokens and cut by truncation="longest_first".
"""
import json
import pathlib

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "bert_classes"
PAIRS = [["a fine film", "the story is dull"], ["was it good?", "not one , two!"], ["bad", "."],
         ["the dullest film " * 6, "good"], ["good", "the dullest film " * 6], ["a film " * 9, "bad film " * 8]]

tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"), pad_token="[PAD]",
                                                model_input_names=["input_ids", "token_type_ids", "attention_mask"])
model = transformers.BertForSequenceClassification.from_pretrained(FOLDER).eval()
rows = []
for text, pair in PAIRS:
    inputs = tokenizer(text, pair, truncation="longest_first", max_length=24, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    rows.append({"text": text, "pair": pair, "ids": inputs.input_ids[0].tolist(), "types": inputs.token_type_ids[0].tolist(),
                 "logits": logits.tolist(), "scores": logits.softmax(0).tolist()})
(FOLDER / "pairs.json").write_text(json.dumps(rows, indent=1) + "\n")
