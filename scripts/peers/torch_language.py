"""Trains the recipe tinyshakespeare_lstm in PyTorch, and measures the loss of PyTorch's dynamic quantization of weights that Galley
trained; called by scripts/language-accuracy.

usage: torch_language.py SETTINGS_JSON: {text, weights (Galley's), epochs, seed, threads}. One JSON line per epoch on stdout, then one with
{float, int8: mean loss of the validation windows with Galley's weights, version}.

As in Galley: consecutive windows of 64 characters, the last tenth for validation, zero initial state for each window; batches extend into
the next epoch; dropout on the embeddings, between the layers and before the last product.
"""
import json
import math
import sys
import warnings

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
how = json.loads(sys.argv[1])
torch.set_num_threads(how["threads"])
torch.backends.quantized.engine = "x86"
T, BATCH, EMBEDDING, HIDDEN, LAYERS, DROPOUT, RATE = 64, 32, 64, 256, 2, 0.2, 0.003

text = open(how["text"], encoding="utf-8").read()
vocabulary = sorted(set(text))
ids = torch.tensor([{c: i for i, c in enumerate(vocabulary)}[c] for c in text])
windows = -(-(len(ids) - 1) // T)
inputs, labels = torch.zeros(windows * T, dtype=torch.long), torch.full((windows * T,), -100)
inputs[: len(ids) - 1], labels[: len(ids) - 1] = ids[:-1], ids[1:]
inputs, labels = inputs.view(windows, T), labels.view(windows, T)
count = windows * 9 // 10


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(len(vocabulary), EMBEDDING)
        self.drop = nn.Dropout(DROPOUT)
        self.rnn = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, dropout=DROPOUT, batch_first=True)
        self.decoder = nn.Linear(HIDDEN, len(vocabulary))
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x):
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(x)))[0]))


def loss_of(model, x, y, reduction="mean"):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction=reduction)


@torch.inference_mode()
def evaluate(model):
    model.eval()
    total = sum(loss_of(model, x, y, "sum").item() for x, y in zip(inputs[count:].split(64), labels[count:].split(64)))
    return total / (labels[count:] != -100).sum().item()


torch.manual_seed(how["seed"])
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
per_epoch = count / BATCH
total = math.ceil(how["epochs"] * per_epoch)
warm = total * 0.02
order = lambda epoch: torch.randperm(count, generator=torch.Generator().manual_seed(how["seed"] * 1_000_003 + epoch))
position, epoch, permutation = 0, 0, order(0)
for step in range(1, total + 1):
    chosen = []
    while len(chosen) < BATCH:
        if position // count != epoch:
            epoch = position // count
            permutation = order(epoch)
        chosen.append(permutation[position % count])
        position += 1
    chosen = torch.stack(chosen)
    done = step - 1
    factor = 0.1 + 0.9 * done / warm if done < warm else 0.05 + 0.95 * (1 + math.cos(math.pi * (done - warm) / (total - warm))) / 2
    for group in optimizer.param_groups:
        group["lr"] = RATE * factor
    model.train()
    optimizer.zero_grad(set_to_none=True)
    loss_of(model, inputs[chosen], labels[chosen]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if math.floor(step / per_epoch) > math.floor((step - 1) / per_epoch) or step == total:
        print(json.dumps({"epoch": round(step / per_epoch), "loss": evaluate(model)}), flush=True)

missing = model.load_state_dict(safetensors.torch.load_file(how["weights"]), strict=False).missing_keys
assert not missing, missing
quantized = torch.ao.quantization.quantize_dynamic(model.eval(), {nn.LSTM, nn.Linear}, dtype=torch.qint8)
print(json.dumps({"float": evaluate(model), "int8": evaluate(quantized), "version": f"PyTorch {torch.__version__}"}))
