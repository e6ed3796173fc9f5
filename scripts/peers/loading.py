"""Loads batches from a folder of JPEGs (random_resized_crop 224, flip, normalize), against torchvision's DataLoader with its two
decoders."""
import statistics

from environment import environment
from measure import PEERS, Series, galley_benchmark, json_of, output_of, record, say
from models import work_folder

BATCH, BATCHES, IMAGES = 64, 12, 512

RECIPE = """recipe: 1
name: peers_loading
model: {{type: resnet50, num_classes: 4}}
data:
  train:
    source: {{type: image_folder, path: "{folder}"}}
    pipeline:
      - {{type: random_resized_crop, size: 224}}
      - {{type: random_horizontal_flip}}
      - {{type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
"""


def compare(args):
    python = environment("torch", "torchvision")
    rows, versions = [], set()
    with work_folder(args) as work:
        folder = work / "images"
        if not folder.exists():
            output_of([python, PEERS / "make_images.py", folder, IMAGES])
        recipe = folder.parent / "loading.yaml"
        recipe.write_text(RECIPE.format(folder=folder.resolve()))
        for workers in (1, 2):
            sides = ("Galley", "pillow", "tensor")
            times = {side: Series() for side in sides}
            for _ in range(args.rounds):
                for side in sides:
                    if side == "Galley":
                        row = galley_benchmark(args, recipe, "what=data", f"batch={BATCH}", f"data.train.workers={workers}",
                                               "benchmark.warmup=4", f"benchmark.stop.min_runs={BATCHES}", "benchmark.stop.ci=0.1%",
                                               "benchmark.stop.max_time=8s")
                        milliseconds = row["runs_ms"]
                    else:
                        result = json_of([python, PEERS / "torch_loader.py", folder, BATCH, workers, BATCHES, side])
                        milliseconds = result["times_ms"]
                        versions.add(result["version"])
                    # Batches arrive in bursts, so use the mean: the number of batches per time matters.
                    times[side].add([statistics.fmean(milliseconds)])
                    say(f"data, {workers} workers, {side}: {BATCH * 1e3 / statistics.fmean(milliseconds):.0f} images/s")
            rate = lambda side: times[side].summary(images_per_s=round(BATCH * 1e3 / times[side].median, 1))
            rows.append((f"{workers} worker{'s' if workers > 1 else ''}",
                         {"Galley": rate("Galley"), "Pillow": rate("pillow"), "decode_jpeg": rate("tensor")}))
    record(args, "data", rows, versions)
