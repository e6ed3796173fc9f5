"""Makes a folder of JPEGs of 500 x 375 pixels in classes: smooth random images with some noise, about as large as photographs.

usage: make_images.py FOLDER COUNT
"""
import pathlib
import sys

import numpy
from PIL import Image

folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
random = numpy.random.default_rng(0)
for i in range(count):
    place = folder / f"class{i % 4}"
    place.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=numpy.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    noisy = numpy.asarray(coarse, dtype=numpy.float32) + random.normal(0, 8, (375, 500, 1)).astype(numpy.float32)
    Image.fromarray(numpy.clip(noisy, 0, 255).astype(numpy.uint8)).save(place / f"{i:04}.jpg", quality=90)
