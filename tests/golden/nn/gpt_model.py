"""A GPT built of torch.nn layers, with minGPT's names: for make_gpt.py and ../models/make_golden.py."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, heads, width, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        n, t, e = x.shape
        q, k, v = (part.reshape(n, t, self.heads, e // self.heads).transpose(1, 2) for part in self.c_attn(x).split(e, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(n, t, e))


class Mlp(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, heads, width, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(heads, width, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = Mlp(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, block, bias, tied):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(block, width),
                                          "h": nn.ModuleList(Block(heads, width, bias) for _ in range(layers)),
                                          "ln_f": nn.LayerNorm(width, bias=bias)})
        if not tied:
            self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.tied = tied

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1]))
        for block in parts["h"]:
            x = block(x)
        x = parts["ln_f"](x)
        return F.linear(x, parts["wte"].weight) if self.tied else self.lm_head(x)
