"""Makes recurrent.txt: results, final states and gradients of torch.nn.LSTM, GRU and RNN in float64.

Run: python make_recurrent.py > recurrent.txt   (PyTorch; the version is in the file's first line)
Each case: "case NAME CELL HIDDEN LAYERS BIAS BIDIRECTIONAL NONLINEARITY STATES", then arrays "NAME shape | values": x, parameters by
torch's names, h0 and c0 if given, y, hn, cn; random cotangents of y, hn and cn, and the gradients of their sum, d_<name>.
"""
import torch

torch.manual_seed(4321)
torch.set_default_dtype(torch.float64)


def show(name, array):
    print(name, *array.shape, "|", *(repr(float(v)) for v in array.detach().reshape(-1)))


def case(name, cell, batch, steps, features, hidden, layers=1, bias=True, both=False, nonlinearity="tanh", states=False):
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    extra = {"nonlinearity": nonlinearity} if cell == "rnn" else {}
    module = kind(features, hidden, layers, bias=bias, batch_first=True, bidirectional=both, **extra)
    x = torch.randn(batch, steps, features, requires_grad=True)
    given = {}
    if states:
        for key in ["h0", "c0"] if cell == "lstm" else ["h0"]:
            given[key] = torch.randn(layers * (2 if both else 1), batch, hidden, requires_grad=True)
    start = None if not states else (given["h0"], given["c0"]) if cell == "lstm" else given["h0"]
    y, last = module(x, start)
    results = {"y": y, "hn": last[0], "cn": last[1]} if cell == "lstm" else {"y": y, "hn": last}
    cotangents = {k: torch.randn_like(v) for k, v in results.items()}
    sum((v * cotangents[k]).sum() for k, v in results.items()).backward()
    print("case", name, cell, hidden, layers, int(bias), int(both), nonlinearity, int(states))
    inputs = {"x": x, **dict(module.named_parameters()), **given}
    for k, v in inputs.items():
        show(k, v)
    for k, v in results.items():
        show(k, v)
    for k, v in cotangents.items():
        show("cotangent_" + k, v)
    for k, v in inputs.items():
        show("d_" + k, v.grad)


print("# torch", torch.__version__)
for cell in ("lstm", "gru", "rnn"):
    case(cell + "_plain", cell, 2, 4, 3, 3)
    case(cell + "_no_bias_states", cell, 2, 3, 2, 3, bias=False, states=True)
    case(cell + "_deep_both", cell, 2, 3, 2, 2, layers=2, both=True, states=True)
case("rnn_relu", "rnn", 2, 4, 3, 3, nonlinearity="relu")
