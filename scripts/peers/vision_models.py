"""torchvision's detectors, segmentation and optical flow with random weights, for timing. Batch norm has the statistics of noise, and the
detectors' logits are scaled so that about as many candidates are left as in trained networks."""
import torch
from torchvision.models import detection, optical_flow, segmentation

# rows and columns of Galley's input; PyTorch's detectors resize inside, here to the same size
SIZES = {"ssdlite320_mobilenet_v3_large": (320, 320), "fasterrcnn_mobilenet_v3_large_320_fpn": (320, 448),
         "lraspp_mobilenet_v3_large": (520, 520), "deeplabv3_mobilenet_v3_large": (520, 520), "raft_small": (368, 496)}
DETECTORS = [name for name in SIZES if name.startswith(("ssd", "faster"))]


def noise(name, count):
    """Images as Galley's benchmark makes them after normalization: uniform numbers between -1 and 1."""
    return torch.rand(count, 3, *SIZES[name]) * 2 - 1


def raw(model, image):
    """The image that the detector's own normalization turns into `image`."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.transform.image_mean, model.transform.image_std))
    return image * std + mean


def settle(model, run):
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    with torch.no_grad():
        run()
    model.eval()


def build(name, train=False):
    torch.manual_seed(0)
    if name == "raft_small":
        return optical_flow.raft_small(weights=None).eval()
    if name in DETECTORS:
        model = getattr(detection, name)(weights=None, weights_backbone=None).eval()
        if train:
            return model
        if name.startswith("ssdlite"):
            settle(model, lambda: model.head(list(model.backbone(noise(name, 4)).values())))
            for block in model.head.classification_head.module_list:
                block[1].weight.data *= 6
                block[1].bias.data.view(-1, 91)[:, 0] += 9
        else:
            settle(model, lambda: model.backbone(noise(name, 4)))
            model.roi_heads.box_predictor.cls_score.weight.data *= 12
            model.roi_heads.box_predictor.cls_score.bias.data[0] += 4
            model.rpn.head.cls_logits.weight.data *= 10
        return model
    model = getattr(segmentation, name)(weights=None, weights_backbone=None, aux_loss=True if train else None).eval()
    if not train:
        settle(model, lambda: model(noise(name, 2)))
    return model


def inputs(name, model):
    """The arguments of a call for one image, or one pair of images."""
    if name == "raft_small":
        return noise(name, 1), noise(name, 1)
    image = noise(name, 1)
    return ([raw(model, image[0])],) if name in DETECTORS else (image,)


class Exported(torch.nn.Module):
    """The model with tensors as inputs and outputs: boxes, labels and scores; classes; or the last flow."""

    def __init__(self, name, model):
        super().__init__()
        self.name, self.model = name, model

    def forward(self, *images):
        if self.name in DETECTORS:
            found = self.model([images[0]])[0]
            return found["boxes"], found["labels"], found["scores"]
        result = self.model(*images)
        return result["out"] if isinstance(result, dict) else result[-1]
