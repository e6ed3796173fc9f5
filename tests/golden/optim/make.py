"""Makes golden tables for tests/optim with PyTorch in float64:  python make.py  (writes to its folder).

updates.txt: for each case a line "case NAME", then five lines of the two-by-three parameter after each step, then its states.
schedules.txt: for each case a line "case NAME", then a line of learning rates of updates 1, 2, ...
clip.txt: norms and clipped gradients of torch.nn.utils.clip_grad_norm_.
Initial values and gradients are closed forms, which the test also computes:
    p[i] = sin(i + 1),  g[k][i] = cos(1.7 * i + 0.9 * k)   (i = 0..5, step k = 1..5)
"""
import math
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = f"# made by make.py with torch {torch.__version__}\n"


def start():
    return torch.tensor([math.sin(i + 1) for i in range(6)], dtype=torch.float64).reshape(2, 3)


def grad(k):
    return torch.tensor([math.cos(1.7 * i + 0.9 * k) for i in range(6)], dtype=torch.float64).reshape(2, 3)


def row(t):
    return " ".join(repr(float(x)) for x in t.detach().reshape(-1))


UPDATES = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.05)),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)),
    "adam": (torch.optim.Adam, dict(lr=0.1)),
    "adam_options": (torch.optim.Adam, dict(lr=0.1, betas=(0.7, 0.95), eps=0.1, weight_decay=0.05)),
    "adamw": (torch.optim.AdamW, dict(lr=0.1)),
    "adamw_options": (torch.optim.AdamW, dict(lr=0.1, betas=(0.7, 0.95), eps=0.1, weight_decay=0.2)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.1)),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(lr=0.1, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=0.05)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=0.1, alpha=0.9, centered=True, eps=0.01)),
    "rmsprop_both": (torch.optim.RMSprop, dict(lr=0.1, alpha=0.9, centered=True, eps=0.01, momentum=0.8)),
}
STATES = ["momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg"]

with open(os.path.join(HERE, "updates.txt"), "w") as out:
    out.write(HEAD)
    for name, (kind, options) in UPDATES.items():
        p = torch.nn.Parameter(start())
        optimizer = kind([p], **options)
        out.write(f"case {name}\n")
        for k in range(1, 6):
            p.grad = grad(k)
            optimizer.step()
            out.write(f"param {row(p)}\n")
        for state in STATES:
            value = optimizer.state.get(p, {}).get(state)
            if isinstance(value, torch.Tensor) and value.numel() == 6:
                out.write(f"{state} {row(value)}\n")

S = torch.optim.lr_scheduler


def rates(make, count, every=1):
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=0.4)
    scheduler = make(optimizer)
    values = []
    for k in range(count):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (k + 1) % every == 0:
            scheduler.step()
    return " ".join(repr(v) for v in values)


with open(os.path.join(HERE, "schedules.txt"), "w") as out:
    out.write(HEAD)
    cases = {
        "linear": rates(lambda o: S.LinearLR(o, 0.1, 1.0, 8), 12),
        "cosine": rates(lambda o: S.CosineAnnealingLR(o, 20, eta_min=0.02), 20),
        "step": rates(lambda o: S.StepLR(o, 4, 0.5), 14),
        "multi_step": rates(lambda o: S.MultiStepLR(o, [3, 7, 8], 0.3), 12),
        "exponential": rates(lambda o: S.ExponentialLR(o, 0.9), 12),
        "polynomial": rates(lambda o: S.PolynomialLR(o, 10, 2.0), 12),
        # One step per epoch of three updates, as in torchvision's scripts.
        "step_by_epoch": rates(lambda o: S.StepLR(o, 2, 0.5), 18, every=3),
        "exponential_by_epoch": rates(lambda o: S.ExponentialLR(o, 0.9), 18, every=3),
        "cosine_by_epoch": rates(lambda o: S.CosineAnnealingLR(o, 6), 18, every=3),
        "warmup_cosine_by_epoch": rates(
            lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 2), S.CosineAnnealingLR(o, 4)], [2]), 18, every=3),
        "warmup_cosine": rates(lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 5), S.CosineAnnealingLR(o, 10)], [5]), 15),
    }
    for name, values in cases.items():
        out.write(f"case {name}\nlr {values}\n")

with open(os.path.join(HERE, "clip.txt"), "w") as out:
    out.write(HEAD)
    for bound in (0.5, 100.0):
        parameters = [torch.nn.Parameter(start()), torch.nn.Parameter(start())]
        for k, p in enumerate(parameters):
            p.grad = grad(k + 1)
        norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
        out.write(f"case norm_{bound}\nnorm {float(norm)!r}\n")
        for p in parameters:
            out.write(f"grad {row(p.grad)}\n")
