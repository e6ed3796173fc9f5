"""Makes boxes.txt: results of torchvision's operators on boxes in float64, with which the tests compare the reference.

Run: python make_boxes.py > boxes.txt   (torchvision; the version is in the file's first line)
Each case: "case NAME", then arrays "NAME shape | values".
"""
import torch
import torchvision
from torchvision.ops import batched_nms, deform_conv2d, nms, ps_roi_align, roi_align, roi_pool

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)


def show(name, array):
    print(name, *array.shape, "|", " ".join(repr(float(v)) for v in array.detach().double().reshape(-1)))


def boxes(count, width, height):
    """Random boxes, some of which leave the image, and three with equal or exchanged corners."""
    first = torch.rand(count, 2) * torch.tensor([width, height]) - 2
    size = torch.rand(count, 2) * torch.tensor([width, height]) * 0.7
    result = torch.cat([first, first + size], 1)
    result[0, 2:] = result[0, :2]
    result[1] = result[1][[2, 3, 0, 1]]
    result[2] = torch.tensor([-30.0, -30.0, -10.0, -5.0])
    return result


def roi(name, aligned, ratio, scale, size):
    x = torch.randn(2, 3, 9, 11).requires_grad_(True)
    regions = torch.stack([boxes(6, 11 / scale, 9 / scale) for _ in range(2)])
    y = roi_align(x, list(regions), size, scale, ratio, aligned)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    print("case", name)
    show("x", x)
    show("boxes", regions)
    show("y", y.reshape(2, 6, *y.shape[1:]))
    show("cotangent", cotangent.reshape(2, 6, *y.shape[1:]))
    show("d_x", x.grad)


def suppression(name, classes, threshold, score_threshold, per_class, most):
    """The selection of torchvision's detectors: of each class the best candidates above a score, nms in each class, the best of all."""
    b = torch.rand(40, 4) * 20
    b[:, 2:] = b[:, :2] + 2 + torch.rand(40, 2) * 10
    scores = torch.rand(40, classes)
    candidates = []
    for kind in range(classes):
        rows = torch.nonzero(scores[:, kind] > score_threshold).flatten()
        rows = rows[torch.sort(scores[rows, kind], descending=True, stable=True).indices]
        candidates.append(rows[:per_class] * classes + kind if per_class else rows * classes + kind)
    flat = torch.cat(candidates)
    kept = batched_nms(b[flat // classes], scores.flatten()[flat], flat % classes, threshold)[:most]
    print("case", name)
    show("boxes", b)
    show("scores", scores)
    show("index", flat[kept])


def regions_and_gradient(name, operator, channels, scale, rows):
    """Without degenerate boxes, for which ps_roi_align gives NaN."""
    x = torch.randn(2, channels, 9, 11).requires_grad_(True)
    regions = torch.stack([boxes(rows + 3, 11 / scale, 9 / scale)[3:] for _ in range(2)])
    y = operator(x, list(regions), scale)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    print("case", name)
    show("x", x)
    show("boxes", regions)
    show("y", y.reshape(2, rows, *y.shape[1:]))
    show("cotangent", cotangent.reshape(2, rows, *y.shape[1:]))
    show("d_x", x.grad)


def deformable(name, groups, offset_groups, size, kernel, stride, padding, dilation, with_mask):
    """Offsets of up to two pixels, so that some taps leave the image."""
    x = torch.randn(2, 4, *size)
    weight = torch.randn(6, 4 // groups, *kernel)
    rows, columns = [(size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    taps = kernel[0] * kernel[1]
    offset = torch.rand(2, 2 * offset_groups * taps, rows, columns) * 4 - 2
    mask = torch.rand(2, offset_groups * taps, rows, columns) if with_mask else None
    bias = torch.randn(6)
    arrays = {"x": x, "offset": offset, "weight": weight, "bias": bias}
    if with_mask:
        arrays["mask"] = mask
    for array in arrays.values():
        array.requires_grad_(True)
    y = deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    print("case", name)
    for key, array in arrays.items():
        show(key, array)
        show("d_" + key, array.grad)
    show("y", y)
    show("cotangent", cotangent)


print("# torchvision", torchvision.__version__)
roi("roi_align", False, 2, 0.5, (3, 4))
roi("roi_align_adaptive", False, 0, 0.25, (2, 3))
roi("roi_align_aligned", True, 2, 1.0, (4, 2))
roi("roi_align_aligned_adaptive", True, 0, 0.5, (3, 3))
suppression("nms_one_class", 1, 0.4, -1.0, 0, 100)
suppression("nms_classes", 5, 0.3, 0.2, 0, 1000)
suppression("nms_per_class", 5, 0.45, 0.2, 7, 1000)
suppression("nms_most", 4, 0.5, 0.1, 12, 15)
regions_and_gradient("roi_pool", lambda x, r, scale: roi_pool(x, r, (3, 2), scale), 2, 0.5, 4)
regions_and_gradient("roi_pool_more_bins_than_pixels", lambda x, r, scale: roi_pool(x, r, (4, 5), scale), 1, 0.25, 3)
regions_and_gradient("ps_roi_align", lambda x, r, scale: ps_roi_align(x, r, (3, 2), scale, 2), 6, 0.5, 4)
regions_and_gradient("ps_roi_align_adaptive", lambda x, r, scale: ps_roi_align(x, r, (2, 2), scale, -1), 4, 1.0, 3)
deformable("deform_plain", 1, 1, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), False)
deformable("deform_groups", 2, 2, (6, 5), (2, 3), (2, 1), (1, 0), (1, 2), True)
