"""Measures the time of a training step by kind of operator, with galley-profile."""
from measure import json_of, machine_class, say
import results

MODELS = {"resnet50": 16, "mobilenet_v3_large": 32}  # model: batch
LEAST_PERCENT = 0.7  # of the step; smaller rows are omitted


def compare(args):
    rows = []
    for model in args.only:
        batch = MODELS[model]
        words = [f"benchmark/{model}_synthetic", f"train.batch={batch}", "profile.synthetic=true"]
        say(f"profile {model}, batch {batch}")
        report = json_of([args.bin / "galley-profile", *words, "--threads", args.threads, "--format", "json", "--quiet"])
        row = results.row_of(args, f"{model}, batch {batch}", machine_class(), [], {})
        del row["sides"], row["rounds"]
        rows.append({**row, "command": " ".join(["galley-profile", *words]), **summary(report)})
    results.store("step profiles", rows)


def summary(report):
    steps, work, machine = report["steps"], report["work"], report["machine"]
    kinds = {}
    for op in report["operators"]:
        kinds.setdefault((op["type"], op["phase"]), []).append(op)
    operators = [kind_of(kind, ops, steps) for kind, ops in kinds.items()]
    operators = sorted((op for op in operators if op["percent"] >= LEAST_PERCENT), key=lambda op: -op["percent"])
    return {
        "step_ms": report["wall_ms"] / steps, "gib": work["bytes"] / steps / 2**30, "gflops_per_s": work["gflops_per_s"],
        "limit_percent": work["limit_percent"], "machine_gflops_per_s": machine["flops_per_s"] * 1e-9,
        "machine_gbytes_per_s": machine["bytes_per_s"] * 1e-9, "operators": operators
    }


def kind_of(kind, ops, steps):
    """The sum over all operators of one type and phase, per step."""
    ms = sum(op["self_ms"] for op in ops)
    limit_ms = {
        bound: sum(op["self_ms"] * op.get("limit_percent", 0) / 100 for op in ops if op.get("bound") == bound)
        for bound in ("compute", "memory")
    }
    rate = lambda key: sum(op[key] for op in ops) / ms * 1e-6 if ms > 0 else 0.0
    return {
        "type": kind[0], "phase": kind[1], "calls": sum(op["calls"] for op in ops) // steps, "ms": round(ms / steps, 2),
        "percent": round(sum(op["percent"] for op in ops), 2), "gflops_per_s": round(rate("flops"), 2),
        "gbytes_per_s": round(rate("bytes"), 2), "limit_percent": round(100 * sum(limit_ms.values()) / ms, 1) if ms > 0 else 0.0,
        "bound": max(limit_ms, key=limit_ms.get) if any(limit_ms.values()) else ""
    }
