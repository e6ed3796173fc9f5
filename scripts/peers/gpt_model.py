"""GPT-2's transformer in PyTorch, with scaled_dot_product_attention, initialized as in nanoGPT."""
import torch
import torch.nn.functional as F
from torch import nn

# name: blocks, heads, width, vocabulary
SIZES = {"gpt_10m": (6, 6, 384, 65), "gpt_30m": (6, 8, 512, 50257), "gpt_124m": (12, 12, 768, 50257)}


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention, self.projection = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x, cache):
        batch, length, width = x.shape
        qkv = self.attention(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1).transpose(1, 2).reshape(batch, length, width)
        x = x + self.projection(y)
        return x + self.narrow(F.gelu(self.widen(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """`caches` holds a list for each block, which keeps the keys and values of earlier calls."""

    def __init__(self, blocks, heads, width, vocabulary, positions=1024, bias=True):
        super().__init__()
        self.vocabulary = vocabulary
        self.tokens, self.positions = nn.Embedding(self.vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width, bias=bias), nn.Linear(width, self.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)  # N(0, 1) would make the gradients denormal numbers
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for last in (block.projection, block.narrow):
                nn.init.normal_(last.weight, std=0.02 / (2 * blocks) ** 0.5)

    def forward(self, ids, first=0, caches=None):
        x = self.tokens(ids) + self.positions(torch.arange(first, first + ids.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number])
        return self.head(self.norm(x))
