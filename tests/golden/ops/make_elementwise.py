"""Makes elementwise.txt: results and gradients of torch's element-wise functions in float64, including special values.

Run: python make_elementwise.py > elementwise.txt   (PyTorch; the version is in the file's first line)
Each case: "case OPERATOR.VARIANT", then arrays "NAME shape | values": the operator's real options, x (numbers of float32), y, a random
cotangent, d_x.
"""
import math

import torch
import torch.nn.functional as F

torch.manual_seed(777)

EDGES = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 20.0, -20.0, 1e-3, -1e-3, 1e-30, -1e-30, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 88.0, -88.0, 3e38,
    -3e38
]


def show(name, array):
    print(name, *array.shape, "|", *(repr(float(v)) for v in array.detach().reshape(-1)))


def case(name, function, **options):
    values = torch.cat([torch.tensor(EDGES), 4 * torch.randn(40)]).float().double()
    x = values.clone().requires_grad_()
    y = function(x, **options)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    print("case", name)
    for key, value in options.items():
        show(key, torch.tensor(value, dtype=torch.float64))
    show("x", x)
    show("y", y)
    show("cotangent", cotangent)
    show("d_x", x.grad)


print("# torch", torch.__version__)
case("softplus.default", F.softplus)
case("softplus.sharp", F.softplus, beta=2.5, threshold=20.0)
case("softplus.low", F.softplus, beta=1.0, threshold=1.5)
case("mish.default", F.mish)
case("elu.default", F.elu)
case("elu.alpha", F.elu, alpha=0.3)
case("leaky_relu.default", F.leaky_relu)
case("leaky_relu.slope", F.leaky_relu, negative_slope=0.25)
case("logsigmoid.default", F.logsigmoid)
case("erf.default", torch.erf)
case("sign.default", torch.sign)
case("floor.default", torch.floor)
case("round.default", torch.round)
case("relu.default", F.relu)
case("relu6.default", F.relu6)
case("hardswish.default", F.hardswish)
case("hardsigmoid.default", F.hardsigmoid)
case("sigmoid.default", torch.sigmoid)
case("silu.default", F.silu)
case("gelu.default", F.gelu)
case("tanh.default", torch.tanh)
case("selu.default", F.selu)
case("celu.default", F.celu)
case("celu.alpha", F.celu, alpha=0.3)
case("softsign.default", F.softsign)
