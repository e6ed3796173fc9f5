#!/usr/bin/env python3
"""Makes transformer.txt: results of torch.nn.Transformer between embeddings with sinusoidal positions and a linear layer, in float64.

Run: python make_transformer.py > transformer.txt   (PyTorch; the version is in the file's first line)

Weights are golden_state of golden_values.py, a function of name and index, so that the file has only results. Each model:
`case NAME`, then `KEY full|sample COUNT VALUES` as in tests/nn/golden_file.h: `logits`, `loss` (cross-entropy with label smoothing 0.1 over
targets that are not -100), `grad:PARAMETER`, and after five AdamW steps on other tokens `lossI` and `after:PARAMETER`. The sources of a
batch have different lengths: keys past a length are masked in the encoder and in cross attention. Cases: tests/nn/transformer_test.cpp.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from golden_values import golden_state, show

torch.set_default_dtype(torch.float64)
VOCABULARY, SOURCE, TARGET = 13, 7, 5
LENGTHS = torch.tensor([7, 4])


def sinusoids(length, width):
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((angles.sin(), angles.cos()), dim=2).reshape(length, width)


class Model(nn.Module):
    def __init__(self, tied, **options):
        super().__init__()
        self.width = options["d_model"]
        names = ["embedding"] if tied else ["src_embedding", "tgt_embedding"]
        for name in names:
            setattr(self, name, nn.Embedding(VOCABULARY, self.width))
        self.tables = [getattr(self, names[0]), getattr(self, names[-1])]
        self.transformer = nn.Transformer(dropout=0, batch_first=True, **options)
        if not tied:
            self.generator = nn.Linear(self.width, VOCABULARY)
        self.tied = tied

    def forward(self, src, tgt):
        embedded = [table(ids) * math.sqrt(self.width) + sinusoids(ids.shape[1], self.width) for table, ids in zip(self.tables, (src, tgt))]
        padding = torch.arange(src.shape[1]) >= LENGTHS[:, None]
        causal = torch.triu(torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool), 1)
        x = self.transformer(*embedded, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return F.linear(x, self.tables[1].weight) if self.tied else self.generator(x)


def tokens(name):
    """Sources, targets and labels of two rows: integers of a formula that transformer_test.cpp has too."""
    step = sum(name.encode()) % 5 + 2
    src = [[(i * i * step + 3 * i + row * 5) % VOCABULARY for i in range(SOURCE)] for row in range(2)]
    tgt = [[(i * step + 7 * row + 1) % VOCABULARY for i in range(TARGET)] for row in range(2)]
    label = [[(i * i + step * row + 2) % VOCABULARY for i in range(TARGET)] for row in range(2)]
    label[1][TARGET - 1] = -100
    return torch.tensor(src), torch.tensor(tgt), torch.tensor(label)


def loss_of(model, name):
    src, tgt, label = tokens(name)
    logits = model(src, tgt)
    return logits, F.cross_entropy(logits.reshape(-1, VOCABULARY), label.reshape(-1), label_smoothing=0.1)


def case(name, tied, **options):
    model = Model(tied, d_model=8, nhead=2, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=12, **options)
    # The tables are in the list `tables` as well, but not as modules of their own.
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(golden_state(key, tuple(parameter.shape)))
    print("case", name)
    logits, loss = loss_of(model, name)
    loss.backward()
    show("logits", logits, True)
    show("loss", loss, True)
    for key, parameter in parameters.items():
        show("grad:" + key, parameter.grad)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05)
    for step in range(5):
        optimizer.zero_grad()
        _, loss = loss_of(model, name + str(step))
        loss.backward()
        show(f"loss{step}", loss, True)
        optimizer.step()
    for key, parameter in parameters.items():
        show("after:" + key, parameter)


print("# torch", torch.__version__)
case("tied", True)
case("norm_first", False, norm_first=True, activation="gelu")
case("no_bias", True, bias=False, layer_norm_eps=1e-3)
