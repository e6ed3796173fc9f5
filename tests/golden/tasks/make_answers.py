#!/usr/bin/env python3
"""Makes answers.json in this folder: SQuAD's exact match and F1 of predictions, and the best spans of random logits.

    python3 tests/golden/tasks/make_answers.py        (standard library)

  metrics  predictions, answers, the normalized prediction, exact match and F1 by SQuAD's definition (Rajpurkar et al. 2016): lower case,
           without string.punctuation and the words a, an, the, split at white space; F1 of bags of words, the best over the answers
  spans    of each question: windows (start and end logits, the number of the first token of the context, its bytes in the context), the
           longest answer, whether there may be none; and all spans of the context, best first, with the softmax of the best 20 scores
"""
import json
import math
import pathlib
import random
import re
import string
from collections import Counter

here = pathlib.Path(__file__).resolve().parent


def normalized(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(prediction, answer):
    a, b = normalized(prediction).split(), normalized(answer).split()
    if not a or not b:
        return float(a == b)
    common = sum((Counter(a) & Counter(b)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)


CASES = [
    ("The home team", ["home team", "the team"]), ("a cup, in extra time", ["cup in the extra-time!"]), ("", []), ("something", []),
    ("the", ["a"]), ("", ["x"]), ("$1,000", ["1000"]), ("Ångström's  the\tunit", ["ångströms unit"]), ("the the the", ["an"]),
    ("theory of a", ["theory of"]), ("one two two three", ["two two one four", "three one"]), ("ÉCOLE", ["école"]),
    ("a–b the–end", ["b end"]), ("ab\u00a0the\u2003c", ["ab c"]), ("x²the", ["x² the"]), ("can't", ["cant"]), ("İstanbul", ["istanbul"]),
    ("a.the.b", ["ab"]), ("U.S.A.", ["usa", "us"]), ("\u1e9e the", ["\u00df"]), ("b\u0301a the", ["b\u0301a"]),
]
random.seed(3)
WORDS = ["a", "the", "an", "team", "cup", "won", "in", "extra", "time,", "The", "1,000", "(home)", "team's"]
for _ in range(60):
    make = lambda: " ".join(random.choice(WORDS) for _ in range(random.randrange(6)))
    CASES.append((make(), [make() for _ in range(random.randrange(3))]))


def metrics(prediction, answers):
    known = answers if answers else [""]
    return {"prediction": prediction, "answers": answers, "normalized": normalized(prediction),
            "exact": int(any(normalized(prediction) == normalized(a) for a in known)),
            "f1": max(f1(prediction, a) for a in known)}


def spans(count, window_tokens, longest, none):
    """A context of `count` tokens of 3 bytes, in windows that share tokens."""
    windows, best, least = [], {}, math.inf
    for begin in range(0, count, window_tokens - 2):
        size = min(window_tokens, count - begin)
        first = random.randrange(1, 4)
        logits = [[round(random.gauss(0, 3), 2) for _ in range(first + size + 1)] for _ in range(2)]
        where = [[3 * (begin + i), 3 * (begin + i) + 2] for i in range(size)]
        windows.append({"start": logits[0], "end": logits[1], "first": first, "bytes": where})
        least = min(least, logits[0][0] + logits[1][0])
        for a in range(size):
            for b in range(a, min(size, a + longest)):
                key = (where[a][0], where[b][1])
                best[key] = max(best.get(key, -math.inf), logits[0][first + a] + logits[1][first + b])
        if begin + size >= count:
            break
    ordered = sorted(((score, key) for key, score in best.items()), key=lambda item: (-item[0], item[1]))[:20]
    if none:
        ordered = sorted(ordered + [(least, (0, 0))], key=lambda item: -item[0])
    top = ordered[0][0]
    total = sum(math.exp(score - top) for score, _ in ordered)
    result = [{"begin": key[0], "end": key[1], "score": score, "probability": math.exp(score - top) / total} for score, key in ordered]
    return {"longest": longest, "no_answer": none, "windows": windows, "spans": result}


data = {"metrics": [metrics(*case) for case in CASES],
        "spans": [spans(9, 20, 4, False), spans(30, 12, 3, True), spans(50, 11, 30, False), spans(1, 5, 1, True), spans(64, 40, 8, True)]}
(here / "answers.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
