"""Makes quantized.txt: results of PyTorch's quantization, for tests/ops/quantized_golden_test.cpp.

Run: python make.py > quantized.txt   (PyTorch with the x86 engine; the version is in the file's first line)
Each case: "case NAME", then arrays "NAME shape | values"; a number is an array without sizes. Integers are the stored ones.
"""
import warnings

import torch
from torch.ao.quantization.observer import (HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver,
                                            MovingAveragePerChannelMinMaxObserver, PerChannelMinMaxObserver)

warnings.filterwarnings("ignore")
torch.manual_seed(4321)
torch.backends.quantized.engine = "x86"
rand = torch.randn


def show(name, array):
    array = torch.as_tensor(array)
    values = " ".join(f"{v:.9g}" for v in array.detach().float().reshape(-1).tolist())  # nine digits represent float32 exactly
    print(name, *array.shape, "|", values)


def case(name, **arrays):
    print("case", name)
    for key, value in arrays.items():
        show(key, value)


def q(x, scale, zero_point, dtype=torch.quint8):
    return torch.quantize_per_tensor(x, scale, zero_point, dtype)


def params(prefix, x):
    """Integers, scale (as float32) and zero point of a quantized tensor."""
    return {
        prefix: x.int_repr(), prefix + "_scale": torch.tensor(x.q_scale(), dtype=torch.float32), prefix + "_zero_point": x.q_zero_point()
    }


print("# torch", torch.__version__)

# Quantization parameters from observers, with two batches, so that the moving average changes.
batches = [rand(4, 6, 5) * s + m for s, m in ((1, 0.3), (2, -0.5), (0.5, 1))]
for name, dtype, scheme, extra in (
        ("affine_u8", torch.quint8, torch.per_tensor_affine, {}),
        ("affine_i8", torch.qint8, torch.per_tensor_affine, {}),
        ("affine_reduced", torch.quint8, torch.per_tensor_affine, {"reduce_range": True}),
        ("symmetric_i8", torch.qint8, torch.per_tensor_symmetric, {}),
        ("symmetric_narrow", torch.qint8, torch.per_tensor_symmetric, {"quant_min": -127, "quant_max": 127}),
        ("symmetric_u8", torch.quint8, torch.per_tensor_symmetric, {})):
    for kind, observer in (("min_max", MinMaxObserver), ("moving", MovingAverageMinMaxObserver)):
        o = observer(dtype=dtype, qscheme=scheme, **extra)
        for batch in batches:
            o(batch)
        scale, zero_point = o.calculate_qparams()
        case(f"observer_{kind}_{name}", batches=torch.stack(batches), low=o.min_val, high=o.max_val, qmin=o.quant_min, qmax=o.quant_max,
             scale=scale.reshape(()), zero_point=zero_point.reshape(()))
weight = rand(5, 3, 2, 2)
weight[3] = 0
for name, scheme in (("affine", torch.per_channel_affine), ("symmetric", torch.per_channel_symmetric)):
    for kind, observer in (("min_max", PerChannelMinMaxObserver), ("moving", MovingAveragePerChannelMinMaxObserver)):
        o = observer(ch_axis=0, dtype=torch.qint8, qscheme=scheme)
        o(weight)
        o(weight * 1.5 + 0.1)
        scale, zero_point = o.calculate_qparams()
        case(f"observer_channels_{kind}_{name}",
             batches=torch.stack([weight, weight * 1.5 + 0.1]),
             low=o.min_val,
             high=o.max_val,
             qmin=o.quant_min,
             qmax=o.quant_max,
             scale=scale,
             zero_point=zero_point)

# Quantize and dequantize.
x = rand(3, 40) * 3
for name, scale, zero_point, dtype in (("u8", 0.0473, 119, torch.quint8), ("i8", 0.031, -7, torch.qint8), ("halves", 0.5, 100,
                                                                                                           torch.quint8)):
    values = torch.round(x * 4) / 4 if name == "halves" else x
    y = q(values, scale, zero_point, dtype)
    case("quantize_" + name, x=values, **params("y", y), back=y.dequantize())

# Fake quantization and its gradients.
for name, low, high in (("u8", 0, 255), ("i8", -127, 127), ("int4", -8, 7)):
    x = (rand(2, 5, 4) * 2).requires_grad_()
    g = rand(2, 5, 4)
    scale, zero_point = (0.3 if name == "int4" else 0.017), (100 if name == "u8" else 0)
    y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
    y.backward(g)
    single = torch.tensor(scale, dtype=torch.float32)
    case("fake_" + name, x=x, scale=single, zero_point=zero_point, qmin=low, qmax=high, grad=g, y=y, dx=x.grad, factor=1, axis=-1)
    scales, zeros = torch.rand(5) * scale + scale / 2, torch.tensor([1, 0, -2, 3, 0], dtype=torch.int32) + zero_point
    x2 = x.detach().clone().requires_grad_()
    y = torch.fake_quantize_per_channel_affine(x2, scales, zeros, 1, low, high)
    y.backward(g)
    case("fake_channels_" + name, x=x2, scale=scales, zero_point=zeros, qmin=low, qmax=high, grad=g, y=y, dx=x2.grad, factor=1, axis=1)
    for factor in (1.0, 0.125):
        x3, s3 = x.detach().clone().requires_grad_(), single.reshape(1).clone().requires_grad_()
        y = torch._fake_quantize_learnable_per_tensor_affine(x3, s3, torch.tensor([float(zero_point)]), low, high, factor)
        y.backward(g)
        case(f"fake_learnable_{name}_{factor}", x=x3, scale=single, zero_point=zero_point, qmin=low, qmax=high, grad=g, y=y, dx=x3.grad,
             dscale=s3.grad.reshape(()), factor=factor, axis=-1)
        x4, s4 = x.detach().clone().requires_grad_(), scales.clone().requires_grad_()
        y = torch._fake_quantize_learnable_per_channel_affine(x4, s4, zeros.float(), 1, low, high, factor)
        y.backward(g)
        case(f"fake_learnable_channels_{name}_{factor}", x=x4, scale=scales, zero_point=zeros, qmin=low, qmax=high, grad=g, y=y, dx=x4.grad,
             dscale=s4.grad, factor=factor, axis=1)

# Convolutions and linear layers. Activations of 0..127, as the observers of the x86 engine choose them, since its sums of pairs saturate.
ops = torch.ops.quantized


def weights(shape):
    w = rand(*shape) * 0.3
    scales = w.abs().amax(dim=tuple(range(1, len(shape)))) / 127.5
    return torch.quantize_per_channel(w, scales.double(), torch.zeros(shape[0], dtype=torch.long), 0, torch.qint8), scales


def activation(shape, scale, zero_point):
    return q(rand(*shape).clamp(max=(127 - zero_point) * scale), scale, zero_point)


for name, shape, wshape, stride, padding, dilation, groups in (
        ("plain", (2, 3, 7, 6), (8, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
        ("strided_groups", (1, 8, 9, 7), (12, 4, 3, 3), (2, 1), (1, 0), (1, 1), 2),
        ("depthwise", (1, 16, 6, 7), (16, 1, 3, 3), (1, 1), (1, 1), (1, 1), 16),
        ("pointwise", (2, 20, 4, 3), (9, 20, 1, 1), (1, 1), (0, 0), (1, 1), 1),
        ("dilated", (1, 4, 9, 9), (5, 4, 3, 3), (1, 1), (2, 2), (2, 2), 1)):
    x = activation(shape, 0.043, 61)
    w, scales = weights(wshape)
    bias = rand(wshape[0]) * 0.3
    packed = ops.conv2d_prepack(w, bias, stride, padding, dilation, groups)
    common = dict(**params("x", x),
                  weight=w.int_repr(),
                  weight_scale=w.q_per_channel_scales().float(),
                  bias=bias,
                  stride=stride,
                  padding=padding,
                  dilation=dilation,
                  groups=groups)
    case(f"conv2d_{name}", **common, **params("y", ops.conv2d(x, packed, 0.031, 120)), relu=0)
    case(f"conv2d_{name}_relu", **common, **params("y", ops.conv2d_relu(x, packed, 0.019, 0)), relu=1)

for name, shape, outputs in (("plain", (5, 24), 10), ("rank3", (2, 3, 17), 8)):
    x = activation(shape, 0.043, 61)
    w, scales = weights((outputs, shape[-1]))
    bias = rand(outputs) * 0.3
    packed = ops.linear_prepack(w, bias)
    common = dict(**params("x", x), weight=w.int_repr(), weight_scale=w.q_per_channel_scales().float(), bias=bias)
    case(f"linear_{name}", **common, **params("y", ops.linear(x, packed, 0.037, 110)), relu=0)
    case(f"linear_{name}_relu", **common, **params("y", ops.linear_relu(x, packed, 0.021, 0)), relu=1)
    real = rand(*shape) * 2 + 0.5
    for reduced in (True, False):
        # Weights so small that the 16-bit sums of the engine cannot saturate with 0..255.
        small = torch.quantize_per_channel(w.dequantize(),
                                           w.q_per_channel_scales() * 2.1, torch.zeros(outputs, dtype=torch.long), 0, torch.qint8)
        y = ops.linear_dynamic(real, ops.linear_prepack(small, bias), reduced)
        case(f"linear_dynamic_{name}" + ("_reduced" if reduced else ""),
             x=real,
             weight=small.int_repr(),
             weight_scale=small.q_per_channel_scales().float(),
             bias=bias,
             y=y,
             reduced=int(reduced))

# Element-wise operators, concatenation, pools, table functions.
a, b = q(rand(2, 5, 4, 3) * 2, 0.043, 120), q(rand(2, 5, 4, 3), 0.021, 99)
case("add", **params("a", a), **params("b", b), **params("y", ops.add(a, b, 0.05, 115)))
case("add_relu", **params("a", a), **params("b", b), **params("y", ops.add_relu(a, b, 0.03, 10)))
case("mul", **params("a", a), **params("b", b), **params("y", ops.mul(a, b, 0.05, 115)))
c = q(rand(2, 2, 4, 3) * 4, 0.07, 140)
case("cat", **params("a", a), **params("b", b), **params("c", c), **params("y", ops.cat([a, b, c], 1, 0.05, 128)))
case("max_pool2d", **params("x", a), **params("y", torch.nn.functional.max_pool2d(a, 3, 2, 1)))
case("avg_pool2d", **params("x", a), **params("y", torch.nn.functional.avg_pool2d(a, (3, 2), (1, 2), (1, 0))), count_include_pad=1)
case("avg_pool2d_valid",
     **params("x", a),
     **params("y", torch.nn.functional.avg_pool2d(a, (3, 2), (1, 2), (1, 0), count_include_pad=False)),
     count_include_pad=0)
case("adaptive_avg_pool2d", **params("x", a), **params("y", torch.nn.functional.adaptive_avg_pool2d(a, (3, 2))))
every = torch._make_per_tensor_quantized_tensor(torch.arange(256, dtype=torch.uint8), 0.05, 120)
case("table_hardswish", **params("x", every), **params("y", ops.hardswish(every, 0.03, 12)))
case("table_sigmoid", **params("x", every), **params("y", ops.sigmoid(every, 1 / 256, 0)))
case("table_hardsigmoid", **params("x", every), **params("y", torch.ops.aten.hardsigmoid(every)))
case("table_tanh", **params("x", every), **params("y", torch.tanh(every)))
case("table_relu", **params("x", every), **params("y", torch.relu(every)))
case("table_relu6", **params("x", every), **params("y", ops.relu6(every)))
case("table_gelu", **params("x", every), **params("y", torch.nn.functional.gelu(every)))
