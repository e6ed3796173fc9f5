#!/usr/bin/env python3
"""Makes detection.json in this folder: average precision by pycocotools, and by Pascal VOC's rule in plain Python.

    python3 tests/golden/tasks/make_detection.py

Needs numpy and pycocotools. Each world has images with objects and detections, the 12 figures of pycocotools, the precision of each
category, and the two forms of VOC's mean average precision.
"""
import contextlib
import io
import json
import pathlib

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

HERE = pathlib.Path(__file__).resolve().parent


def world(seed, images=5, categories=3, objects=8, detections=14, grid=1.0, ties=False, crowd=0.1, matched=0.7, ids=None):
    """Random objects, and detections of which `matched` are moved objects."""
    random = np.random.default_rng(seed)
    ids = ids or list(range(1, images + 1))
    made = {"images": ids, "objects": [], "detections": []}
    for image in ids:
        own = []
        for _ in range(random.integers(0, objects + 1)):
            side = random.choice([12.0, 60.0, 150.0], 2) * random.uniform(0.5, 1.5, 2)
            box = np.round(np.concatenate([random.uniform(0, 300, 2), side]) / grid) * grid
            own.append({
                "image": image,
                "label": int(random.integers(1, categories + 1)),
                "box": [float(v) for v in box],
                "area": float(np.round(box[2] * box[3] * random.uniform(0.3, 1.0), 2)),
                "crowd": bool(random.uniform() < crowd),
                "difficult": bool(random.uniform() < 0.2)
            })
        made["objects"] += own
        for _ in range(random.integers(0, detections + 1)):
            if own and random.uniform() < matched:
                like = own[random.integers(len(own))]
                box = np.array(like["box"]) + random.normal(0, 4, 4) * np.array([1, 1, 1.5, 1.5])
                label = like["label"] if random.uniform() < 0.9 else int(random.integers(1, categories + 1))
            else:
                box = np.concatenate([random.uniform(0, 300, 2), random.uniform(5, 200, 2)])
                label = int(random.integers(1, categories + 1))
            box[2:] = np.maximum(box[2:], 1)
            score = random.uniform(0.05, 1)
            made["detections"].append({
                "image": image,
                "label": label,
                "box": [float(v) for v in np.round(box / grid) * grid],
                "score": float(np.round(score, 1)) if ties else float(score)
            })
    return made


def coco_figures(made, categories):
    data = {
        "images": [{"id": i} for i in made["images"]],
        "categories": [{"id": c, "name": str(c)} for c in range(1, categories + 1)],
        "annotations": [{
            "id": n + 1,
            "image_id": o["image"],
            "category_id": o["label"],
            "bbox": o["box"],
            "area": o["area"],
            "iscrowd": int(o["crowd"])
        } for n, o in enumerate(made["objects"])]
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = data
        truth.createIndex()
        found = [{
            "image_id": d["image"],
            "category_id": d["label"],
            "bbox": list(d["box"]),
            "score": d["score"]
        } for d in made["detections"]]
        if found:
            results = truth.loadRes(found)
        else:
            results = COCO()
            results.dataset = {**data, "annotations": []}
            results.createIndex()
        evaluation = COCOeval(truth, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    classes = {}
    for k, label in enumerate(evaluation.params.catIds):
        of_class = precision[:, :, k]
        if (of_class > -1).any():
            classes[str(label)] = [float(of_class[of_class > -1].mean()), float(of_class[0][of_class[0] > -1].mean())]
    return [None if v < 0 else float(v) for v in evaluation.stats], classes


def voc_overlap(a, b):
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0]) + 1
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / ((a[2] + 1) * (a[3] + 1) + (b[2] + 1) * (b[3] + 1) - width * height)


def voc_figures(made, categories):
    """Both forms of the mean average precision: areas under the curve, means over 11 recalls."""
    areas, points = [], []
    for label in range(1, categories + 1):
        objects = {i: [o for o in made["objects"] if o["image"] == i and o["label"] == label] for i in made["images"]}
        total = sum(not o["difficult"] for own in objects.values() for o in own)
        if total == 0:
            continue
        taken = set()
        right, wrong = [], []
        order = sorted((d for i in sorted(made["images"]) for d in made["detections"] if d["image"] == i and d["label"] == label),
                       key=lambda d: -d["score"])
        for d in order:
            own = objects[d["image"]]
            overlaps = [voc_overlap(d["box"], o["box"]) for o in own]
            best = int(np.argmax(overlaps)) if own else -1
            hit = own and overlaps[best] > 0.5
            if hit and own[best]["difficult"]:
                continue
            first = hit and (d["image"], best) not in taken
            if hit:
                taken.add((d["image"], best))
            right.append(1 if first else 0)
            wrong.append(0 if first else 1)
        tp, fp = np.cumsum(right), np.cumsum(wrong)
        recall = tp / total if len(tp) else np.zeros(0)
        precision = tp / (tp + fp) if len(tp) else np.zeros(0)
        points.append(np.mean([max(precision[recall >= t], default=0.0) for t in np.arange(0.0, 1.1, 0.1)]))
        levels = np.concatenate([[0.0], recall, [1.0]])
        envelope = np.maximum.accumulate(np.concatenate([[0.0], precision, [0.0]])[::-1])[::-1]
        steps = np.where(levels[1:] != levels[:-1])[0]
        areas.append(np.sum((levels[steps + 1] - levels[steps]) * envelope[steps + 1]))
    return [float(np.mean(areas)) if areas else None, float(np.mean(points)) if points else None]


def many(made):
    """130 detections of one category in an image: more than count."""
    random = np.random.default_rng(99)
    for n in range(130):
        made["detections"].append({
            "image": made["images"][0],
            "label": 1,
            "box": [float(v) for v in np.round(random.uniform(1, 200, 4), 3)],
            "score": float(random.uniform(0, 1))
        })
    return made


def main():
    worlds = {f"random{seed}": (world(seed), 3) for seed in range(6)}
    worlds["ties"] = (world(20, ties=True), 3)
    worlds["grid"] = (world(21, grid=20.0, ties=True, crowd=0.3), 3)
    worlds["ids"] = (world(22, ids=[40, 7, 1000, 12]), 3)
    worlds["many"] = (many(world(23)), 3)
    worlds["one_image"] = (world(24, images=1, objects=12, detections=30), 3)
    worlds["crowds"] = (world(25, crowd=1.0), 3)
    worlds["good"] = (world(26, images=12, matched=0.97), 4)
    empty = world(27)
    empty["detections"] = []
    worlds["no_detections"] = (empty, 3)
    equal = world(28)
    for d in equal["detections"]:
        d["score"] = 0.5
    worlds["equal_scores"] = (equal, 3)
    bounds = world(29, crowd=0.0)
    for n, o in enumerate(bounds["objects"]):
        o["area"] = [1024.0, 9216.0, 1023.99, 1024.01, 9216.01][n % 5]
    worlds["area_bounds"] = (bounds, 3)
    missing = world(30)
    missing["objects"] = [o for o in missing["objects"] if o["label"] != 2]
    worlds["class_without_objects"] = (missing, 3)
    result = {}
    for name, (made, categories) in worlds.items():
        figures, classes = coco_figures(made, categories)
        result[name] = {**made, "coco": figures, "classes": classes, "voc": voc_figures(made, categories)}
    (HERE / "detection.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
