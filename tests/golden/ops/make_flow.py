"""Makes flow.txt: results and gradients, in float64, of torch's grid_sample and of the parts of torchvision's RAFT.

Run: python make_flow.py > flow.txt   (torch and torchvision; the versions are in the file's first line)
Each case: "case NAME", then arrays "NAME shape | values".
"""
import torch
import torchvision
from torch.nn import functional as F
from torchvision.models.optical_flow._utils import upsample_flow
from torchvision.models.optical_flow.raft import CorrBlock

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)


def show(name, array):
    print(name, *array.shape, "|", " ".join(f"{float(v):.10g}" for v in array.detach().double().reshape(-1)))


def case(name, inputs, result):
    """Inputs by name, the result, and the gradients of those that have one."""
    cotangent = torch.randn_like(result)
    result.backward(cotangent)
    print("case", name)
    for key, value in inputs.items():
        show(key, value)
    show("y", result)
    show("cotangent", cotangent)
    for key, value in inputs.items():
        if value.grad is not None:
            show("d_" + key, value.grad)


print("# torch", torch.__version__, "torchvision", torchvision.__version__)
for mode in ("bilinear", "nearest"):
    for padding in ("zeros", "border", "reflection"):
        for align in (False, True):
            x = torch.randn(2, 2, 3, 4, requires_grad=True)
            grid = (torch.rand(2, 2, 3, 2) * 5 - 2.5).requires_grad_(True)  # half of the points are outside
            y = F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)
            case(f"{mode}_{padding}_{'aligned' if align else 'half'}", {"x": x, "grid": grid}, y)

for name, levels, radius, rows, columns in (("lookup", 2, 1, 4, 5), ("lookup_wide", 1, 3, 3, 4)):
    first, second = (torch.randn(2, 3, rows, columns, requires_grad=True) for _ in range(2))
    flow = torch.randn(2, 2, rows, columns) * 2
    block = CorrBlock(num_levels=levels, radius=radius)
    block.build_pyramid(first, second)
    grid = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"))
    case(name, {"first": first, "second": second, "flow": flow}, block.index_pyramid(grid + flow))

flow, mask = torch.randn(2, 2, 3, 4, requires_grad=True), torch.randn(2, 9 * 4, 3, 4, requires_grad=True)
case("convex_upsample", {"flow": flow, "mask": mask}, upsample_flow(flow, mask, factor=2))
