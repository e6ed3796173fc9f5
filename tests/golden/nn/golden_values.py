"""Values of parameters and inputs as a function of name and index (tests/support/golden_weights.h has the same), and the form of results
of tests/nn/golden_file.h.
"""
import math

import numpy as np
import torch


def golden(name, shape, scale=1.0, shift=0.0):
    """shift + scale * u, u uniform in [-1,1): splitmix64 of (FNV-1a of the name + index), top 24 bits; rounded to float32."""
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return torch.from_numpy((shift + scale * u).astype(np.float32).astype(np.float64).reshape(shape))


def golden_state(name, shape):
    if name.endswith("num_batches_tracked"):
        return torch.zeros((), dtype=torch.int64)
    if name.endswith("running_var"):
        return golden(name, shape, 0.5, 1.0)
    if len(shape) >= 2:
        return golden(name, shape, math.sqrt(6.0 / math.prod(shape[1:])))
    if name.endswith(".weight"):
        return golden(name, shape, 0.2, 1.0)
    return golden(name, shape, 0.1)


def show(key, array, full=False):
    values = array.detach().reshape(-1).tolist()
    n = len(values)
    if full or n <= 8:
        print(key, "full", n, *(f"{v:.12g}" for v in values))
    else:
        norm = math.sqrt(sum(v * v for v in values))
        print(key, "sample", n, *(f"{v:.12g}" for v in (norm, values[0], values[n // 3], values[2 * n // 3], values[n - 1])))
