"""Makes gpt.txt: logits, loss and gradients of a small GPT in float64, built of torch.nn layers with minGPT's names.

Run: python make_gpt.py > gpt.txt   (PyTorch; the version is in the file's first line)
Each case: "case NAME LAYERS HEADS WIDTH VOCABULARY BLOCK BIAS TIED", then arrays "NAME shape | values": tokens, targets, the parameters,
logits, loss (the mean over targets that are not -100), and the gradients of the loss, d_<name>.
"""
import torch
from torch import nn
from torch.nn import functional as F

from gpt_model import Gpt

torch.manual_seed(1234)
torch.set_default_dtype(torch.float64)


def show(name, array):
    print(name, *array.shape, "|", *(repr(float(v)) for v in array.detach().reshape(-1)))


def case(name, layers, heads, width, vocabulary, block, length, bias, tied):
    model = Gpt(layers, heads, width, vocabulary, block, bias, tied)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3 if parameter.dim() > 1 else 1, 0.4)
    tokens, targets = torch.randint(vocabulary, (2, length)), torch.randint(vocabulary, (2, length))
    targets[1, -1] = -100
    logits = model(tokens)
    loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1))
    loss.backward()
    print("case", name, layers, heads, width, vocabulary, block, int(bias), int(tied))
    show("tokens", tokens)
    show("targets", targets)
    for key, parameter in model.named_parameters():
        show(key, parameter)
        show("d_" + key, parameter.grad)
    show("logits", logits)
    show("loss", loss)


print("# torch", torch.__version__)
case("tied", 2, 2, 8, 7, 6, 5, bias=True, tied=True)
case("separate_head", 1, 3, 6, 5, 4, 4, bias=False, tied=False)
