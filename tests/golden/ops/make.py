"""Makes operators.txt: results and gradients of torch.nn.functional in float64, with which the tests compare the reference.

Run: python make.py > operators.txt   (PyTorch; the version is in the file's first line)
Each case: "case NAME", then arrays "NAME shape | values".
"""
import torch
import torch.nn.functional as F

torch.manual_seed(1234)
torch.set_default_dtype(torch.float64)


def show(name, array):
    values = " ".join(repr(float(v)) for v in array.detach().double().reshape(-1))
    print(name, *array.shape, "|", values)


def case(name, inputs, run, differentiate):
    """Arrays of the inputs, y, a random cotangent, and d_<input> of those to differentiate."""
    inputs = {k: v.detach().clone().requires_grad_(k in differentiate) for k, v in inputs.items()}
    y = run(**inputs)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    print("case", name)
    for k, v in inputs.items():
        show(k, v)
    show("y", y)
    show("cotangent", cotangent)
    for k in differentiate:
        show("d_" + k, inputs[k].grad)


print("# torch", torch.__version__)
rand = torch.randn
case("conv2d_groups", dict(x=rand(2, 4, 6, 5), weight=rand(6, 2, 3, 3), bias=rand(6)),
     lambda x, weight, bias: F.conv2d(x, weight, bias, stride=(2, 1), padding=(1, 0), groups=2), ["x", "weight", "bias"])
case("conv2d_dilation", dict(x=rand(1, 2, 9, 8), weight=rand(3, 2, 3, 2), bias=rand(3)),
     lambda x, weight, bias: F.conv2d(x, weight, bias, stride=2, padding=(1, 2), dilation=(2, 3)), ["x", "weight", "bias"])
case("conv2d_depthwise", dict(x=rand(2, 3, 5, 5), weight=rand(3, 1, 3, 3), bias=rand(3)),
     lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1, groups=3), ["x", "weight", "bias"])

mean, var = rand(3), rand(3).abs() + 0.5
x, gamma, beta = rand(4, 3, 3, 2), rand(3), rand(3)
new_mean, new_var = mean.clone(), var.clone()
case("batch_norm_training", dict(x=x, gamma=gamma, beta=beta),
     lambda x, gamma, beta: F.batch_norm(x, new_mean, new_var, gamma, beta, True, 0.1, 1e-5), ["x", "gamma", "beta"])
for k, v in dict(running_mean=mean, running_var=var, new_mean=new_mean, new_var=new_var).items():
    show(k, v)
case("batch_norm_inference", dict(x=x, gamma=gamma, beta=beta, running_mean=mean, running_var=var),
     lambda x, gamma, beta, running_mean, running_var: F.batch_norm(x, running_mean, running_var, gamma, beta, False, 0.1, 1e-5),
     ["x", "gamma", "beta"])
case("layer_norm", dict(x=rand(2, 3, 4), gamma=rand(3, 4), beta=rand(3, 4)),
     lambda x, gamma, beta: F.layer_norm(x, (3, 4), gamma, beta, 1e-5), ["x", "gamma", "beta"])
case("group_norm", dict(x=rand(2, 6, 3, 2), gamma=rand(6), beta=rand(6)),
     lambda x, gamma, beta: F.group_norm(x, 3, gamma, beta, 1e-5), ["x", "gamma", "beta"])

for ceil in (False, True):
    name = "_ceil" if ceil else ""
    case("max_pool2d" + name, dict(x=rand(1, 2, 6, 7)), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil), ["x"])
    case("max_pool2d_dilated" + name, dict(x=rand(1, 2, 8, 7)), lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 0), (2, 1), ceil_mode=ceil),
         ["x"])
    for include in (False, True):
        case("avg_pool2d" + name + ("_pad" if include else ""), dict(x=rand(1, 2, 6, 5)),
             lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=ceil, count_include_pad=include), ["x"])
case("adaptive_avg_pool2d", dict(x=rand(2, 2, 7, 5)), lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ["x"])
case("adaptive_max_pool2d", dict(x=rand(2, 2, 7, 5)), lambda x: F.adaptive_max_pool2d(x, (3, 2)), ["x"])

for reduction in ("mean", "sum", "none"):
    for smoothing in (0.0, 0.2):
        for weighted in (False, True):
            name = f"_{reduction}" + ("_smoothed" if smoothing else "") + ("_weighted" if weighted else "")
            weight = dict(class_weight=rand(4).abs() + 0.1) if weighted else {}

            def loss(x, target, class_weight=None):
                if target.shape == x.shape:  # probabilities have no ignored class
                    return F.cross_entropy(x, target, class_weight, reduction=reduction, label_smoothing=smoothing)
                return F.cross_entropy(x, target.long(), class_weight, ignore_index=1, reduction=reduction, label_smoothing=smoothing)

            case("cross_entropy_index" + name, dict(x=rand(3, 4, 2), target=torch.tensor([[0., 1], [3, 2], [1, 0]]), **weight), loss, ["x"])
            case("cross_entropy_probability" + name, dict(x=rand(3, 4, 2), target=rand(3, 4, 2).softmax(1), **weight), loss, ["x"])
    case("mse_loss_" + reduction, dict(x=rand(3, 4), target=rand(3, 4)), lambda x, target: F.mse_loss(x, target, reduction=reduction),
         ["x", "target"])
    case("bce_with_logits_" + reduction, dict(x=rand(3, 4), target=rand(3, 4).sigmoid(), weight=rand(3, 4).abs()),
         lambda x, target, weight: F.binary_cross_entropy_with_logits(x, target, weight, reduction=reduction), ["x", "target"])
# The slopes in their shape before broadcasting.
case("prelu_channels", dict(x=rand(2, 3, 2, 4), weight=rand(3, 1, 1)), lambda x, weight: F.prelu(x, weight.reshape(-1)), ["x", "weight"])
case("prelu_one", dict(x=rand(2, 3, 4), weight=rand(1)), lambda x, weight: F.prelu(x, weight), ["x", "weight"])

# A generator of their own, so that further cases change no earlier one.
torch.manual_seed(5678)
case("conv3d_groups", dict(x=rand(2, 4, 5, 4, 3), weight=rand(6, 2, 3, 2, 3), bias=rand(6)),
     lambda x, weight, bias: F.conv3d(x, weight, bias, stride=(2, 1, 2), padding=(1, 0, 1), groups=2), ["x", "weight", "bias"])
case("conv3d_dilation", dict(x=rand(1, 2, 7, 5, 6), weight=rand(3, 2, 3, 2, 2), bias=rand(3)),
     lambda x, weight, bias: F.conv3d(x, weight, bias, stride=(1, 2, 1), padding=(2, 1, 0), dilation=(2, 1, 3)), ["x", "weight", "bias"])
case("conv3d_factorized", dict(x=rand(2, 3, 4, 3, 3), weight=rand(4, 3, 3, 1, 1), bias=rand(4)),
     lambda x, weight, bias: F.conv3d(x, weight, bias, stride=(2, 1, 1), padding=(1, 0, 0)), ["x", "weight", "bias"])
for ceil in (False, True):
    name = "_ceil" if ceil else ""
    case("max_pool3d" + name, dict(x=rand(1, 2, 6, 5, 7)),
         lambda x: F.max_pool3d(x, (3, 2, 3), (2, 1, 2), (1, 0, 1), (1, 2, 1), ceil), ["x"])
    for include in (False, True):
        case("avg_pool3d" + name + ("_pad" if include else ""), dict(x=rand(1, 2, 6, 5, 4)),
             lambda x: F.avg_pool3d(x, (3, 2, 3), (2, 1, 2), (1, 1, 0), ceil, include), ["x"])
case("adaptive_avg_pool3d", dict(x=rand(2, 2, 5, 4, 7)), lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), ["x"])
