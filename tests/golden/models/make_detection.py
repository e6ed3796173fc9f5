#!/usr/bin/env python3
"""Makes the golden files of detectors in this folder: results of torchvision.

    python3 tests/golden/models/make_detection.py

Needs torch and torchvision. Weights and images are those of make_golden.py. ssdlite.txt has, for small images in float64: the
losses, samples of their gradients and of running statistics, and the detections of a model in evaluation. ssd300.txt has the same
of SSD300, whose size is fixed, in float32, without gradients. fasterrcnn*.txt: detectors with regions, as ssdlite.txt;
*_padded.txt: detections in images of different size. maskrcnn.txt and keypointrcnn.txt: as fasterrcnn.txt, with frozen norms.
detectors.txt has the parameters and buffers of each detector, as zoo.txt.
"""
import copy
import os
import pathlib

import torch
import torchvision
from torch import nn

from make_golden import Writer, golden, prepare

HERE = pathlib.Path(__file__).resolve().parent
detection = torchvision.models.detection
DETECTORS = ["ssdlite320_mobilenet_v3_large", "ssd300_vgg16", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn",
             "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "fasterrcnn_mobilenet_v3_large_fpn",
             "fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2", "keypointrcnn_resnet50_fpn"]

# Objects of three images of 64 x 96 pixels, rows of (x1, y1, x2, y2, label); the second image has none.
OBJECTS = [[(3, 5, 41, 52, 2), (50, 9, 91, 60, 4), (30, 20, 60, 44, 1)], [], [(8.5, 10.25, 70, 58, 3), (60, 2, 95, 30, 1)]]


# Objects of two images of 32 x 64 pixels.
SMALL_OBJECTS = [[(2, 3, 33, 29, 2), (20, 5, 61, 31, 4)], [(8.5, 1.25, 40, 30, 3), (30, 2, 62, 18, 1), (1, 8, 13, 20, 2)]]


def targets_of(objects, scale=(1, 1), dtype=torch.float64):
    rows = [torch.tensor(image, dtype=dtype).reshape(-1, 5) for image in objects]
    factor = torch.tensor([*scale, *scale], dtype=dtype)
    return [{"boxes": image[:, :4] * factor, "labels": image[:, 4].long()} for image in rows]


def without_transform(model, height, width):
    """The model on images that are prepared already."""
    sides = min(height, width), max(height, width)
    model.transform = detection.transform.GeneralizedRCNNTransform(*sides, [0.0] * 3, [1.0] * 3, size_divisible=1,
                                                                   fixed_size=(width, height))
    return model


def write_detections(writer, detections):
    for n, found in enumerate(detections):
        writer.full(f"boxes{n}", found["boxes"])
        writer.full(f"scores{n}", found["scores"])
        writer.full(f"labels{n}", found["labels"])


def write_training(writer, model, images, objects):
    model.train()
    losses = model(list(images), targets_of(objects))
    for name, loss in losses.items():
        writer.full(f"loss:{name}", loss)
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        writer.sample(f"grad:{name}", parameter.grad)
    for name, value in model.named_buffers():
        if not name.endswith("num_batches_tracked"):
            writer.sample(f"buffer:{name}", value)


def scale_layers(layers, factor):
    with torch.no_grad():
        for layer in layers:
            layer.weight *= factor
            layer.bias *= factor


def write_pyramid(name, file, factor=1):
    """A detector on a feature pyramid, for two images of 32 x 64 pixels. For detections the last layers of a head without norms are
    multiplied by `factor`: all scores would be 1."""
    torch.set_default_dtype(torch.float64)
    options = {"num_classes": 5, "topk_candidates": 30, "detections_per_img": 20}
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    generator = model.anchor_generator
    generator.cell_anchors = [cell.double() for cell in generator.cell_anchors]
    model = prepare(without_transform(model, 32, 64))
    images = golden("input", (2, 3, 32, 64), 3.0**0.5)
    w = Writer()
    scaled = copy.deepcopy(model)
    if factor != 1:
        scale_layers([scaled.head.classification_head.cls_logits, scaled.head.regression_head.bbox_reg], factor)
    scaled.eval()
    with torch.no_grad():
        write_detections(w, scaled(list(images)))
    write_training(w, model, images, SMALL_OBJECTS)
    w.save(file)
    torch.set_default_dtype(torch.float32)


class FirstOfEachKind:
    """Sampling by torchvision takes the first rows, as `sampling: first` of a recipe."""

    def __enter__(self):
        self.randperm = torch.randperm
        torch.randperm = lambda n, **options: torch.arange(n)

    def __exit__(self, *error):
        torch.randperm = self.randperm


def scale_predictors(model, factor):
    """Multiplies the last layers of both stages, and of the heads of masks and key points."""
    predictor = model.roi_heads.box_predictor
    layers = [model.rpn.head.cls_logits, model.rpn.head.bbox_pred, predictor.cls_score, predictor.bbox_pred]
    if model.roi_heads.has_mask():
        layers.append(model.roi_heads.mask_predictor.mask_fcn_logits)
    if model.roi_heads.has_keypoint():
        layers.append(model.roi_heads.keypoint_predictor.kps_score_lowres)
    scale_layers(layers, factor)


def write_rcnn(name, file, factor, height=32, width=64, **options):
    """A detector with regions, for two images. Small numbers of candidates, so that they matter. Training samples the first rows. For
    detections the last layers are multiplied by `factor`: with running statistics that suit no data, all scores would be 0 or 1."""
    torch.set_default_dtype(torch.float64)
    options = {"num_classes": 5, "rpn_pre_nms_top_n_train": 60, "rpn_pre_nms_top_n_test": 40, "rpn_post_nms_top_n_train": 50,
               "rpn_post_nms_top_n_test": 12, "rpn_batch_size_per_image": 32, "box_batch_size_per_image": 8, "box_score_thresh": 0.02,
               "box_detections_per_img": 25, **options}
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    generator = model.rpn.anchor_generator
    generator.cell_anchors = [cell.double() for cell in generator.cell_anchors]
    model = prepare(without_transform(model, height, width))
    images = golden("input", (2, 3, height, width), 3.0**0.5)
    w = Writer()
    scaled = copy.deepcopy(model)
    scale_predictors(scaled, factor)
    scaled.eval()
    with torch.no_grad():
        write_detections(w, scaled(list(images)))
    with FirstOfEachKind():
        write_training(w, model, images, SMALL_OBJECTS)
    w.save(file)
    torch.set_default_dtype(torch.float32)


def write_padded(name, file, factor=None, **options):
    """Detections of two images of different size, 32 x 64 and 25 x 50 pixels, padded as torchvision does."""
    torch.set_default_dtype(torch.float64)
    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, **options)
    generator = model.rpn.anchor_generator if factor else model.anchor_generator
    generator.cell_anchors = [cell.double() for cell in generator.cell_anchors]
    model = prepare(without_transform(model, 32, 64))
    if factor:
        scale_predictors(model, factor)
    transform = detection.transform.GeneralizedRCNNTransform(32, 64, [0.0] * 3, [1.0] * 3)
    transform.resize = lambda image, target=None: (image, target)
    model.transform = transform
    images = golden("input", (2, 3, 32, 64), 3.0**0.5)
    w = Writer()
    model.eval()
    with torch.no_grad():
        write_detections(w, model([images[0], images[1, :, :25, :50]]))
    w.save(file)
    torch.set_default_dtype(torch.float32)


POINTS = 5  # key points of an object


def instance_targets(objects, height, width):
    """Boxes and labels; the mask of an object is an ellipse in its box; its key points are in the box and on its sides."""
    targets = targets_of(objects)
    y, x = torch.arange(height)[:, None] + 0.5, torch.arange(width)[None, :] + 0.5
    for target in targets:
        masks, keypoints = [], []
        for i, (x1, y1, x2, y2) in enumerate(target["boxes"].tolist()):
            masks.append(((2 * x - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y - y1 - y2) / (y2 - y1)) ** 2 <= 1)
            for k in range(POINTS):
                keypoints.append([x1 + (x2 - x1) * ((3 * k + i) % 8) / 7, y1 + (y2 - y1) * ((5 * k + 2 * i) % 9) / 8, (k + i) % 3])
        target["masks"] = torch.stack(masks).to(torch.uint8) if masks else torch.zeros(0, height, width, dtype=torch.uint8)
        target["keypoints"] = torch.tensor(keypoints, dtype=torch.float32).reshape(-1, POINTS, 3)
    return targets


def write_instances(name, file, factor, **options):
    """A detector with a head for masks or key points, for two images of 32 x 64 pixels. The norms are frozen, as those of published
    models, and three stages of the backbone are trained. masks0, masks1: the probabilities in cells of each box."""
    height, width = 32, 64
    torch.set_default_dtype(torch.float64)
    options = {"num_classes": 5, "rpn_pre_nms_top_n_train": 60, "rpn_pre_nms_top_n_test": 40, "rpn_post_nms_top_n_train": 50,
               "rpn_post_nms_top_n_test": 12, "rpn_batch_size_per_image": 32, "box_batch_size_per_image": 16, "box_score_thresh": 0.02,
               "box_detections_per_img": 10, **options}
    resnet = torchvision.models.resnet50(norm_layer=torchvision.ops.FrozenBatchNorm2d)
    model = name(detection.backbone_utils._resnet_fpn_extractor(resnet, 3), **options)
    generator = model.rpn.anchor_generator
    generator.cell_anchors = [cell.double() for cell in generator.cell_anchors]
    model = prepare(without_transform(model, height, width))
    scale_predictors(model, factor)
    images = golden("input", (2, 3, height, width), 3.0**0.5)
    w = Writer()
    cells = []
    inference = detection.roi_heads.maskrcnn_inference
    detection.roi_heads.maskrcnn_inference = lambda *arguments: cells.extend(inference(*arguments)) or cells
    model.eval()
    with torch.no_grad():
        found = model(list(images))
    write_detections(w, found)
    for n, masks in enumerate(cells):
        w.sample(f"masks{n}", masks)
    for n, detected in enumerate(found):
        if "keypoints" in detected:
            w.full(f"keypoints{n}", torch.cat([detected["keypoints"][..., :2], detected["keypoints_scores"][..., None]], -1))
    model.train()
    with FirstOfEachKind():
        losses = model(list(images), instance_targets(SMALL_OBJECTS, height, width))
    for key, loss in losses.items():
        w.full(f"loss:{key}", loss)
    sum(losses.values()).backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            w.sample(f"grad:{key}", parameter.grad)
    w.save(file)
    detection.roi_heads.maskrcnn_inference = inference
    torch.set_default_dtype(torch.float32)


def write_ssdlite():
    height, width = 64, 96
    torch.set_default_dtype(torch.float64)  # default boxes too
    options = {"num_classes": 5, "score_thresh": 0.1, "topk_candidates": 12, "detections_per_img": 40}
    model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, **options)
    generator = model.anchor_generator
    generator._wh_pairs = generator._generate_wh_pairs(len(generator.aspect_ratios), dtype=torch.float64)
    model = prepare(without_transform(model, height, width))
    images = golden("input", (3, 3, height, width), 3.0**0.5)
    w = Writer()
    model.eval()
    with torch.no_grad():
        write_detections(w, model(list(images)))
    write_training(w, model, images, OBJECTS)
    w.save("ssdlite")
    torch.set_default_dtype(torch.float32)


def write_ssd300():
    model = detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=5, detections_per_img=30, topk_candidates=10)
    model = prepare(without_transform(model, 300, 300)).float()
    images = golden("input", (1, 3, 300, 300), 3.0**0.5).float()
    w = Writer(digits=8)
    model.eval()
    with torch.no_grad():
        write_detections(w, model(list(images)))
        model.train()
        for name, loss in model(list(images), targets_of(OBJECTS[:1], (3, 4), torch.float32)).items():
            w.full(f"loss:{name}", loss)
    w.save("ssd300")


def write_names():
    lines = []
    for name in DETECTORS:
        model = getattr(detection, name)(weights=None, weights_backbone=None)
        parameters = dict(model.named_parameters())
        lines.append(f"model {name} {sum(p.numel() for p in parameters.values())}")
        before = ""
        for key, value in model.state_dict().items():
            shared = len(os.path.commonprefix([before, key]))
            lines.append(f"{'p' if key in parameters else 'b'} {shared} {key[shared:]} {','.join(map(str, value.shape)) or '-'}")
            before = key
    (HERE / "detectors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_names()
    write_ssdlite()
    write_ssd300()
    write_pyramid("retinanet_resnet50_fpn", "retinanet", 1e-4)
    write_pyramid("retinanet_resnet50_fpn_v2", "retinanet_v2")
    write_pyramid("fcos_resnet50_fpn", "fcos")
    write_rcnn("fasterrcnn_resnet50_fpn", "fasterrcnn", 2e-4)
    write_rcnn("fasterrcnn_resnet50_fpn_v2", "fasterrcnn_v2", 2e-4)
    write_padded("fcos_resnet50_fpn", "fcos_padded", topk_candidates=30, detections_per_img=20)
    write_padded("fasterrcnn_resnet50_fpn", "fasterrcnn_padded", 2e-4, rpn_pre_nms_top_n_test=40, rpn_post_nms_top_n_test=12,
                 box_score_thresh=0.02, box_detections_per_img=25)
    write_rcnn("fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_mobilenet", 4e-3, 96, 160)
    write_instances(detection.MaskRCNN, "maskrcnn", 2e-4)
    write_instances(detection.KeypointRCNN, "keypointrcnn", 2e-4, num_keypoints=POINTS)
