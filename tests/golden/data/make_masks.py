#!/usr/bin/env python3
"""Makes masks.json in this folder: masks of polygons and their run lengths by pycocotools.

    python3 tests/golden/data/make_masks.py

Needs numpy and pycocotools. Each entry has the size of the image, polygons or pixels, the compressed run lengths, area and box, and the
area that the mask shares with the one before it, if their images have equal sizes.
"""
import json
import pathlib

import numpy as np
from pycocotools import mask as coco

HERE = pathlib.Path(__file__).resolve().parent


def entry(height, width, rle, **more):
    return {"size": [height, width], "text": rle["counts"].decode(), "area": int(coco.area(rle)), "box": coco.toBbox(rle).tolist(), **more}


def of_polygons(height, width, polygons):
    rle = coco.merge(coco.frPyObjects(polygons, height, width))
    return rle, entry(height, width, rle, polygons=polygons)


def main():
    random = np.random.default_rng(5)
    made = []
    shapes = [[[1, 1, 8, 1, 8, 6, 1, 6]], [[0, 0, 10, 0, 10, 7, 0, 7]], [[2, 2, 2, 2, 7, 2, 7, 5]], [[3, 1, 3, 6, 3, 1]],
              [[-0.5, -0.5, 10.5, -0.5, 10.5, 7.5, -0.5, 7.5]], [[4.5, 0.2, 9.8, 6.4, 0.3, 6.1]], [[1, 1, 9, 6, 9, 1, 1, 6]],
              [[0.5, 0.5, 4.5, 0.5, 4.5, 4.5, 0.5, 4.5], [3, 3, 9, 3, 9, 6.5, 3, 6.5]]]
    for polygons in shapes:
        made.append(of_polygons(7, 10, [[float(v) for v in polygon] for polygon in polygons]))
    for n in range(40):
        height, width = (37, 61) if n % 2 else (90, 33)
        polygons = []
        for _ in range(random.integers(1, 4)):
            corners = int(random.integers(3, 12))
            points = random.uniform(-1, 1, (corners, 2)) * random.uniform(2, 40) + random.uniform(0, [width, height])
            points = np.clip(points, -1, [width + 1, height + 1])
            polygons.append([float(v) for v in np.round(points, int(random.integers(0, 3))).reshape(-1)])
        made.append(of_polygons(height, width, polygons))
    for n in range(12):
        height, width = (9, 14) if n < 8 else (300, 2)
        pixels = (random.uniform(size=(height, width)) < [0.5, 0.05, 0.95, 0, 1][n % 5]).astype(np.uint8)
        if n % 3 == 0:
            pixels[:, : width // 2] = 1
        rle = coco.encode(np.asfortranarray(pixels))
        made.append((rle, entry(height, width, rle, pixels=["".join(map(str, row)) for row in pixels])))
    result = []
    for n, (rle, item) in enumerate(made):
        if n > 0 and made[n - 1][1]["size"] == item["size"]:
            item["common"] = int(coco.area(coco.merge([made[n - 1][0], rle], intersect=True)))
        result.append(item)
    (HERE / "masks.json").write_text("[\n" + ",\n".join(json.dumps(item) for item in result) + "\n]\n")


if __name__ == "__main__":
    main()
