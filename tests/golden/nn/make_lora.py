"""Makes lora.txt and the folder ../lora: a small GPT with LoRA adapters of PEFT.

Run: python make_lora.py > lora.txt   (PyTorch, peft, safetensors; the versions are in the file's first line)
lora.txt (float64), as gpt.txt: "case NAME LAYERS HEADS WIDTH VOCABULARY BLOCK BIAS TIED RANK ALPHA", then tokens, targets, the parameters
under PEFT's names without base_model.model., logits, loss, and the gradients d_<name> of the adapters.
../lora (float32): base.safetensors; the adapter before (start/) and after five steps of AdamW on data.safetensors (trained/), as
save_pretrained writes them; expected.json with the losses of the steps, in float64 and float32; merged.safetensors, the weights after
merge_and_unload of trained/, and merged_logits.safetensors, their logits on data.safetensors.
"""
import copy
import json
import os

import peft
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch.nn import functional as F

from gpt_model import Gpt

torch.manual_seed(1234)
TARGETS = ["c_attn", "c_fc"]
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lora")


def show(name, array):
    print(name, *array.shape, "|", *(repr(float(v)) for v in array.detach().reshape(-1)))


def adapted(rank, alpha, layers, heads, width, vocabulary, block, bias, tied):
    model = Gpt(layers, heads, width, vocabulary, block, bias, tied)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.3 if parameter.dim() > 1 else 1, 0.4)
    base = copy.deepcopy(model)
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules=TARGETS))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0, 0.3)  # zero at first: then the gradients of A are zero
    return base, model


def loss_of(model, tokens, targets):
    logits = model(tokens)
    return logits, F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def plain(name):
    return name.replace("base_model.model.", "").replace(".base_layer", "").replace(".default", "")


def case(name, rank, alpha, layers, heads, width, vocabulary, block, length, bias, tied):
    _, model = adapted(rank, alpha, layers, heads, width, vocabulary, block, bias, tied)
    tokens, targets = torch.randint(vocabulary, (2, length)), torch.randint(vocabulary, (2, length))
    logits, loss = loss_of(model, tokens, targets)
    loss.backward()
    print("case", name, layers, heads, width, vocabulary, block, int(bias), int(tied), rank, alpha)
    show("tokens", tokens)
    show("targets", targets)
    for key, parameter in model.named_parameters():
        show(plain(key), parameter)
        assert parameter.requires_grad == ("lora_" in key)
        if parameter.requires_grad:
            show("d_" + plain(key), parameter.grad)
    show("logits", logits)
    show("loss", loss)


def five_steps(model, tokens, targets):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1)
    losses = []
    for step in range(5):
        batch = slice(4 * step, 4 * step + 4)
        loss = loss_of(model, tokens[batch], targets[batch])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def files():
    base, model = adapted(3, 6, 2, 2, 8, 7, 6, bias=True, tied=True)
    tokens, targets = torch.randint(7, (20, 6)), torch.randint(7, (20, 6))
    os.makedirs(FOLDER, exist_ok=True)
    save = lambda name, tensors: save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(FOLDER, name))
    save("base.safetensors", base.state_dict())
    save("data.safetensors", {"input": tokens, "label": targets})
    model.save_pretrained(os.path.join(FOLDER, "start"))
    exact = five_steps(copy.deepcopy(model).double(), tokens, targets)
    rounded = five_steps(model, tokens, targets)
    model.save_pretrained(os.path.join(FOLDER, "trained"))
    merged = model.merge_and_unload().eval()
    save("merged.safetensors", merged.state_dict())
    save("merged_logits.safetensors", {"logits": merged(tokens).detach()})
    with open(os.path.join(FOLDER, "expected.json"), "w") as file:
        json.dump({"versions": {"torch": torch.__version__, "peft": peft.__version__}, "losses": exact, "losses_f32": rounded},
                  file,
                  indent=1)
        file.write("\n")
    for name in ("start", "trained"):
        os.remove(os.path.join(FOLDER, name, "README.md"))


print("# torch", torch.__version__, "peft", peft.__version__)
torch.set_default_dtype(torch.float64)
case("tied", 3, 6, 2, 2, 8, 7, 6, 5, bias=True, tied=True)
case("separate_head", 2, 5, 1, 3, 6, 5, 4, 4, bias=False, tied=False)
torch.set_default_dtype(torch.float32)
files()
