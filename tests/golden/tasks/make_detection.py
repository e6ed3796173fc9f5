#!/usr/bin/env python3
"""Makes detection.json in this folder: average precision by pycocotools, and by Pascal VOC's rule in plain Python. instances.json has
worlds of masks and of key points with pycocotools' figures, and masks that torchvision pastes into images.

    python3 tests/golden/tasks/make_detection.py

Needs numpy, pycocotools, torch and torchvision. Each world has images with objects and detections, the 12 figures of pycocotools, the
precision of each category, and the two forms of VOC's mean average precision.
"""
import contextlib
import io
import json
import pathlib

import numpy as np
import torch
from pycocotools import mask as mask_tools
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection.roi_heads import paste_masks_in_image

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


def ellipse(box, height, width):
    y, x = np.mgrid[0:height, 0:width] + 0.5
    inside = ((x - box[0] - box[2] / 2) / (box[2] / 2))**2 + ((y - box[1] - box[3] / 2) / (box[3] / 2))**2 <= 1
    return mask_tools.encode(np.asfortranarray(inside.astype(np.uint8)))


def instance_world(seed, kind, images=6, objects=7, detections=12, crowd=0.1, categories=2, points=17, best=None):
    """Ellipses, or key points, in boxes of images of 160 x 200 pixels, and moved ones as detections. `best`: that many detections in the
    first image. Figures of pycocotools: 12 of masks, 10 of key points."""
    random = np.random.default_rng(seed)
    height, width = 160, 200
    truth, found = [], []

    def instance(box):
        if kind == "segm":
            rle = ellipse(box, height, width)
            return {"segmentation": {"size": rle["size"], "counts": rle["counts"].decode()}}
        place = np.array(box[:2]) + random.uniform(0, 1, (points, 2)) * box[2:]
        return {"keypoints": np.round(np.concatenate([place, random.integers(0, 3, (points, 1))], 1), 2).reshape(-1).tolist()}

    for image in range(1, images + 1):
        own = []
        for _ in range(random.integers(0, objects + 1)):
            side = random.choice([14.0, 50.0, 110.0], 2) * random.uniform(0.5, 1.5, 2)
            box = np.round(np.concatenate([random.uniform(0, [width - 10, height - 10]), side]), 1).tolist()
            label = int(random.integers(1, categories + 1))
            more = instance(box)
            area = float(mask_tools.area(more["segmentation"])) if kind == "segm" else round(box[2] * box[3] * 0.6, 2)
            if kind == "keypoints" and random.uniform() < 0.2:
                more["keypoints"] = [0] * (3 * points)
            crowded = bool(random.uniform() < crowd)
            own.append({"image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowded), **more})
        truth += own
        for _ in range(best if best and image == 1 else random.integers(0, detections + 1)):
            if own and random.uniform() < 0.8:
                like = own[random.integers(len(own))]
                box = np.round(np.maximum(np.array(like["bbox"]) + random.normal(0, 3, 4), [-20, -20, 2, 2]), 1).tolist()
                label = like["category_id"] if random.uniform() < 0.9 else int(random.integers(1, categories + 1))
                more = instance(box)
                if kind == "keypoints":
                    moved = np.array(like["keypoints"]).reshape(-1, 3) + [[*random.normal(0, 2, 2), 0]] * points
                    more = {"keypoints": np.round(moved + random.normal(0, 1, (points, 3)), 2).reshape(-1).tolist()}
            else:
                box = np.round(np.concatenate([random.uniform(0, 120, 2), random.uniform(5, 90, 2)]), 1).tolist()
                label, more = int(random.integers(1, categories + 1)), instance(box)
            found.append({"image_id": image, "category_id": label, "score": float(random.uniform(0.05, 1)), **more})
    data = {"images": [{"id": i, "height": height, "width": width} for i in range(1, images + 1)],
            "categories": [{"id": c, "name": str(c)} for c in range(1, categories + 1)],
            "annotations": [{"id": n + 1, "num_keypoints": sum(v > 0 for v in o.get("keypoints", [])[2::3]), **o}
                            for n, o in enumerate(truth)]}
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = data
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes([dict(d) for d in found]), kind)
        if kind == "keypoints" and points != 17:
            evaluation.params.kpt_oks_sigmas = np.full(points, 1 / points)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {"kind": kind, "images": images, "size": [height, width], "objects": truth, "detections": found,
            "figures": [None if v < 0 else float(v) for v in evaluation.stats]}


def pasted():
    """Probabilities of masks in cells of boxes, and the pixels above 0.5 that torchvision pastes."""
    random = np.random.default_rng(3)
    result = []
    for n, box in enumerate([(10.3, 5.6, 60.2, 40.9), (-7.5, -3.2, 30.4, 25.1), (70.5, 30.5, 99.9, 70.3), (20, 20, 20.4, 20.2),
                             (3.9, 60, 5.1, 79), (0, 0, 90, 80), (88, 2, 130, 20), (40, 70, 60, 95)]):
        side = 6 if n else 28
        cells = np.round(random.uniform(0, 1, (side, side)), 3) if n % 2 else np.round(random.uniform(0.4, 1, (side, side)), 3)
        pixels = paste_masks_in_image(torch.from_numpy(cells)[None, None], torch.tensor([box], dtype=torch.float64), (80, 90))
        rle = mask_tools.encode(np.asfortranarray((pixels[0, 0] > 0.5).numpy().astype(np.uint8)))
        result.append({"box": box, "side": side, "cells": cells.reshape(-1).tolist(), "text": rle["counts"].decode()})
    return {"size": [80, 90], "masks": result}


def write_instances():
    worlds = [instance_world(1, "segm"), instance_world(2, "segm", crowd=0.4), instance_world(3, "segm", images=2, best=110),
              instance_world(4, "keypoints"), instance_world(5, "keypoints", crowd=0.4, categories=1),
              instance_world(6, "keypoints", images=2, best=50, points=5), instance_world(7, "keypoints", points=4, images=3)]
    (HERE / "instances.json").write_text(json.dumps({"worlds": worlds, "pasted": pasted()}) + "\n")


def main():
    write_instances()
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
