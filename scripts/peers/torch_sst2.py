"""Fine-tunes an encoder of a hub on SST-2 in PyTorch with the settings of recipes/train/sst2_bert.

usage: torch_sst2.py MODEL_FOLDER DATA_FOLDER RATE EPOCHS SEED THREADS     One JSON line after each epoch: {epoch, top1 of dev.tsv}
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, data, rate, epochs, seed, threads = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:7])
BATCH, WARM, LENGTH = 32, 65, 64
torch.set_num_threads(threads)
torch.manual_seed(seed)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)


def read(name):
    rows = [line.rsplit("\t", 1) for line in (data / name).read_text().splitlines()]
    return [text for text, _ in rows], torch.tensor([int(label) for _, label in rows])


def batch_of(texts):
    return tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")


def evaluate():
    texts, labels = read("dev.tsv")
    model.eval()
    with torch.inference_mode():
        right = sum((model(**batch_of(texts[i:i + 64])).logits.argmax(1) == labels[i:i + 64]).sum().item()
                    for i in range(0, len(texts), 64))
    model.train()
    return 100 * right / len(texts)


texts, labels = read("train.tsv")
plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0}], lr=rate)
steps = epochs * (len(texts) // BATCH)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / WARM, (steps - step) / (steps - WARM)))
model.train()
for epoch in range(epochs):
    order = torch.randperm(len(texts)).tolist()
    for first in range(0, len(texts) - BATCH + 1, BATCH):
        chosen = order[first:first + BATCH]
        optimizer.zero_grad()
        loss = model(**batch_of([texts[i] for i in chosen]), labels=labels[chosen]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(json.dumps({"epoch": epoch + 1, "top1": round(evaluate(), 2), "version": f"PyTorch {torch.__version__}"}), flush=True)
