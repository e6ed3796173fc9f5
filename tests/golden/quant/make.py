"""Makes golden tables for tests/quant with PyTorch's observers:  python make.py  (writes observers.txt to its folder).

Each line: CASE OBSERVER SCHEME scale zero_point (hexadecimal floats; per channel: all scales, then all zero points).
Values are closed forms in float32, which the test also computes, from the generator s = 6364136223846793005 s + 1442695040888963407
(mod 2^64), u = (s >> 40) / 2^24, started at the case's number:
    bell(4 uniforms) = ((u + u) + (u + u)) - 2
    relu = max(bell, 0); bell; tail = bell / (u + 0.02); positive = (u * u) * 3; negative = -(u * u); shifted = bell * 0.125 + 5
Batch k = 0..3 of 4096 values is multiplied by 1 + k / 4. Weights: [8, 512] of bell, channel c times 2^-c.
"""
import os

import numpy as np
import torch
from torch.ao.quantization import (HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver,
                                   MovingAveragePerChannelMinMaxObserver, PerChannelMinMaxObserver)

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ["relu", "bell", "tail", "positive", "negative", "shifted"]
f32 = np.float32


class Uniform:
    def __init__(self, seed):
        self.s = seed

    def __call__(self):
        self.s = (self.s * 6364136223846793005 + 1442695040888963407) % 2**64
        return f32(self.s >> 40) / f32(2**24)


def bell(u):
    a, b, c, d = u(), u(), u(), u()
    return ((a + b) + (c + d)) - f32(2)


def value(case, u):
    if case == "relu":
        return max(bell(u), f32(0))
    if case == "bell":
        return bell(u)
    if case == "tail":
        x = bell(u)
        return x / (u() + f32(0.02))
    if case == "positive":
        a, b = u(), u()
        return (a * b) * f32(3)
    if case == "negative":
        a, b = u(), u()
        return -(a * b)
    return bell(u) * f32(0.125) + f32(5)


def batches(number):
    u = Uniform(number + 1)
    return [torch.tensor(np.array([value(CASES[number], u) for _ in range(4096)], dtype=f32) * f32(1 + k / 4)) for k in range(4)]


def weights():
    u = Uniform(100)
    return torch.tensor(np.array([[bell(u) * f32(2.0**-c) for _ in range(512)] for c in range(8)], dtype=f32))


SCHEMES = {
    "uint8_affine": dict(dtype=torch.quint8, qscheme=torch.per_tensor_affine),
    "uint8_affine_reduced": dict(dtype=torch.quint8, qscheme=torch.per_tensor_affine, quant_min=0, quant_max=127),
    "int8_affine": dict(dtype=torch.qint8, qscheme=torch.per_tensor_affine),
    "int8_symmetric": dict(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
    "uint8_symmetric": dict(dtype=torch.quint8, qscheme=torch.per_tensor_symmetric),
}
OBSERVERS = {"min_max": MinMaxObserver, "moving_average": MovingAverageMinMaxObserver, "histogram": HistogramObserver}


def line(out, *names, params):
    scale, zero_point = params
    cells = [float(s).hex() for s in scale.reshape(-1)] + [str(int(z)) for z in zero_point.reshape(-1)]
    out.write(" ".join([*names, *cells]) + "\n")


with open(os.path.join(HERE, "observers.txt"), "w") as out:
    out.write(f"# made by make.py with torch {torch.__version__}\n")
    for number, case in enumerate(CASES):
        data = batches(number)
        for observer, kind in OBSERVERS.items():
            for scheme, options in SCHEMES.items():
                o = kind(**options)
                for batch in data:
                    o(batch)
                line(out, case, observer, scheme, params=o.calculate_qparams())
        # A single batch: then PyTorch's histogram counts the values themselves and does not redistribute bins.
        o = HistogramObserver(**SCHEMES["uint8_affine"])
        o(data[0])
        line(out, case, "histogram_of_one", "uint8_affine", params=o.calculate_qparams())
    w = weights()
    for name, options in {
        "int8_symmetric": dict(dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-127, quant_max=127),
        "int8_reduced": dict(dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-64, quant_max=64),
        "int8_affine": dict(dtype=torch.qint8, qscheme=torch.per_channel_affine),
        "int4_symmetric": dict(dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-8, quant_max=7),
        "int4_affine": dict(dtype=torch.qint8, qscheme=torch.per_channel_affine, quant_min=-8, quant_max=7),
    }.items():
        o = PerChannelMinMaxObserver(ch_axis=0, **options)
        o(w)
        line(out, "weights", "per_channel", name, params=o.calculate_qparams())
        scale, zero_point = o.calculate_qparams()
        q = (torch.round(w / scale[:, None]) + zero_point[:, None]).clamp(options.get("quant_min", -128), options.get("quant_max", 127))
        out.write(f"weights sums {name} " + " ".join(str(int(s)) for s in (q.long() * torch.arange(1, 513)).sum(1)) + "\n")
        o = MinMaxObserver(dtype=torch.qint8,
                           qscheme=torch.per_tensor_symmetric if "symmetric" in name or "reduced" in name else torch.per_tensor_affine,
                           quant_min=options.get("quant_min"),
                           quant_max=options.get("quant_max"))
        o(w)
        line(out, "weights", "per_tensor", name, params=o.calculate_qparams())
