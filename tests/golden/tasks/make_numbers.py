#!/usr/bin/env python3
"""Makes numbers.json in this folder: SciPy's and scikit-learn's metrics of random numbers and of random labels.

    python3 tests/golden/tasks/make_numbers.py        (numpy, scipy, scikit-learn)

  numbers  outputs and targets [60,2] with equal values; mae, and pearson and spearman, the means over both columns
  labels   logits [50,5] with equal values and targets of 0 and 1, of which class 4 has none; in percent: f1_micro and f1_macro of the
           logits above 0, map (the mean average precision of the classes that occur) and exact_match
"""
import json
import pathlib

import numpy as np
import scipy.stats
import sklearn
from sklearn import metrics

here = pathlib.Path(__file__).resolve().parent
random = np.random.default_rng(3)
wanted = random.integers(0, 11, (60, 2)) / 2
got = np.round(wanted * [0.7, -0.2] + random.normal(size=(60, 2)), 1)
columns = [(got[:, k], wanted[:, k]) for k in range(2)]
logits = np.round(random.normal(size=(50, 5)), 1)
target = (logits + random.normal(size=(50, 5)) > 0.4).astype(int)
target[:, 4] = 0
target[:8] = logits[:8] > 0
target[:8, 4] = 0
predicted = (logits > 0).astype(int)
golden = {
    "scipy": scipy.__version__,
    "sklearn": sklearn.__version__,
    "numbers": {
        "output": got.flatten().tolist(),
        "target": wanted.flatten().tolist(),
        "mae": float(np.abs(got - wanted).mean()),
        "pearson": float(np.mean([scipy.stats.pearsonr(a, b).statistic for a, b in columns])),
        "spearman": float(np.mean([scipy.stats.spearmanr(a, b).statistic for a, b in columns])),
    },
    "labels": {
        "output": logits.flatten().tolist(),
        "target": target.flatten().tolist(),
        "f1_micro": 100 * metrics.f1_score(target, predicted, average="micro"),
        "f1_macro": 100 * metrics.f1_score(target, predicted, average="macro", zero_division=0),
        "map": 100 * float(np.mean([metrics.average_precision_score(target[:, k], logits[:, k]) for k in range(4)])),
        "exact_match": 100 * metrics.accuracy_score(target, predicted),
    },
}
(here / "numbers.json").write_text(json.dumps(golden) + "\n")
