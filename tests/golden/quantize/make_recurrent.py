"""Makes recurrent.txt: torch.ao.nn.quantized.dynamic's LSTM, GRU (and RNNCell, step by step) on random weights.

Run: python make_recurrent.py > recurrent.txt   (PyTorch; the version is in the file's first line)
Each case: "case NAME", then arrays "NAME shape | values": x, the float weights and biases by torch's names, y and final states.
"""
import warnings

import torch

warnings.filterwarnings("ignore")
torch.manual_seed(99)


def show(name, array):
    print(name, *array.shape, "|", *(repr(float(v)) for v in array.detach().reshape(-1)))


@torch.no_grad()
def largest_positive(module):
    """The largest weight w of a tensor gives the scale |w| / 127.5. A negative one is a tie, which may round to -127 or -128."""
    for p in module.parameters():
        if -p.min() > p.max():
            p.neg_()
    return module


print("# torch", torch.__version__, torch.backends.quantized.engine)
for name, kind, both in (("lstm", torch.nn.LSTM, False), ("lstm_both", torch.nn.LSTM, True), ("gru", torch.nn.GRU, False)):
    module = largest_positive(kind(9, 8, 1, batch_first=True, bidirectional=both))
    quantized = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module), {kind}, dtype=torch.qint8)[0]
    x = torch.randn(3, 6, 9)
    y, last = quantized(x)
    print("case", name)
    show("x", x)
    for key, value in module.named_parameters():
        show(key, value)
    show("y", y)
    show("hn", last[0] if "lstm" in name else last)
    if "lstm" in name:
        show("cn", last[1])
    show("float_y", module(x)[0])
cell = largest_positive(torch.nn.RNNCell(9, 8))
quantized = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(cell), {torch.nn.RNNCell}, dtype=torch.qint8)[0]
x = torch.randn(3, 1, 9)
h0 = torch.rand(3, 8) * 2 - 1
print("case rnn_step")
show("x", x)
for key, value in cell.named_parameters():
    show(key + "_l0", value)
show("h0", h0)
show("y", quantized(x[:, 0], h0))
show("float_y", cell(x[:, 0], h0))
