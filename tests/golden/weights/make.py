"""Makes small torch.save files in every supported form with their contents (expected.json), and files that must be rejected with reasons.

Run with PyTorch and torchvision installed: python make.py. Versions used: see VERSIONS.
"""
import argparse
import collections
import json
import pathlib

import numpy
import torch

HERE = pathlib.Path(__file__).parent
EXPECTED, REFUSED = {}, {}
torch.manual_seed(1)


def values(tensor):
    if tensor.dtype in (torch.complex64, torch.uint16, torch.float8_e4m3fn):
        return None
    return tensor.detach().double().flatten().tolist()


def save(name, content, tensors, others=0, chosen="", zip_form=True, protocol=2, checksums=True):
    torch.serialization.set_crc32_options(checksums)
    torch.save(content, HERE / name, pickle_protocol=protocol, _use_new_zipfile_serialization=zip_form)
    torch.serialization.set_crc32_options(True)
    EXPECTED[name] = {
        "form": "PyTorch zip" if zip_form else "PyTorch before 1.6",
        "chosen": chosen,
        "others": others,
        "checksums": checksums and zip_form,
        "tensors": {
            key: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "values": values(t)} for key, t in tensors.items()
        },
    }


def refuse(name, content, reason, writer=None):
    if writer:
        writer(HERE / name)
    else:
        torch.save(content, HERE / name)
    REFUSED[name] = reason


every = collections.OrderedDict(
    f32=torch.randn(2, 3),
    f64=torch.randn(3, dtype=torch.float64),
    f16=torch.randn(5).half(),
    bf16=torch.randn(2, 2).bfloat16(),
    i64=torch.tensor([-1, 2**40]),
    i32=torch.tensor([-7, 2**30], dtype=torch.int32),
    i16=torch.tensor([-300, 300], dtype=torch.int16),
    i8=torch.tensor([-128, 127], dtype=torch.int8),
    u8=torch.tensor([0, 255], dtype=torch.uint8),
    bool=torch.tensor([True, False, True]),
    scalar=torch.tensor(3.25),
    empty=torch.zeros(0, 4),
)
for protocol in (2, 3, 4, 5):
    save(f"protocol{protocol}.pth", every, every, protocol=protocol)
save("legacy.pth", every, every, zip_form=False)
save("legacy_protocol4.pth", every, every, zip_form=False, protocol=4)
save("no_checksums.pth", every, every, checksums=False)

pool = torch.arange(24.0)
shared = {"whole": pool.view(4, 6), "tail": pool[18:], "row": pool.view(4, 6)[1], "tied.a": every["f32"], "tied.b": every["f32"]}
save("shared.pth", shared, shared)
save("legacy_shared.pth", shared, shared, zip_form=False)

grid = torch.arange(120.0).reshape(2, 3, 4, 5)
strided = {
    "transposed": grid[0, 0].t(),
    "channels_last": grid.contiguous(memory_format=torch.channels_last),
    "steps": grid[:, ::2, 1::2, ::3],
    "permuted": grid.permute(3, 1, 0, 2),
    "column": grid[0, 0, :, 2],
    "bf16": grid[1, 1].bfloat16().t(),
}
save("strided.pth", strided, strided)

module = torch.nn.Sequential(collections.OrderedDict(conv=torch.nn.Conv2d(2, 3, 1), bn=torch.nn.BatchNorm2d(3)))
state = module.state_dict()
save("state_dict.pth", state, state)
parameter = torch.nn.Parameter(torch.randn(2))
save("parameters.pth", {
    "weight": parameter, "size": torch.Size([1, 2]), "dtype": torch.float16, "device": torch.device("cpu"), "bytes": b"\xff\x00",
    "set": {1, 2}
}, {"weight": parameter})

optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
module(torch.randn(2, 2, 1, 1)).sum().backward()
optimizer.step()
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
state = module.state_dict()
training = {
    "model": state, "optimizer": optimizer.state_dict(), "lr_scheduler": schedule.state_dict(), "epoch": 3, "best": 71.5, "none": None,
    "args": argparse.Namespace(lr=0.1, model="small", amp=False, sizes=[1, 2]),
}
save("training.pth", training, state, others=4, chosen="model")
save("training_protocol4.pth", training, state, others=4, chosen="model", protocol=4)
save("nested.pth", {"epoch": 1, "state_dict": {"module." + k: v for k, v in state.items()}}, {"module." + k: v for k, v in state.items()},
     chosen="state_dict")
save("groups.pth", {"encoder": {"w": pool[:2].clone()}, "heads": [pool[2:4].clone(), {"w": pool[4:5].clone()}], 7: (pool[5:6].clone(),)},
     {"encoder.w": pool[:2], "heads.0": pool[2:4], "heads.1.w": pool[4:5], "7.0": pool[5:6]})
save("tensor.pth", pool[:3].clone(), {"tensor": pool[:3]})
odd = {
    "c": torch.zeros(2, dtype=torch.complex64), "u": torch.zeros(3, dtype=torch.uint16), "f8": torch.zeros(4, dtype=torch.float8_e4m3fn),
    "f32": torch.ones(1)
}
save("types.pth", odd, odd)

refuse("refused_model.pth", module, "torch.nn.modules.container.Sequential")
refuse("refused_quantized.pth", {"w": torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)}, "torch._utils._rebuild_qtensor")
refuse("refused_sparse.pth", {"w": torch.eye(3).to_sparse()}, "torch._utils._rebuild_sparse_tensor")
refuse("refused_numpy.pth", {"w": torch.ones(1), "best": numpy.float64(71.5)}, "numpy.")
refuse("refused_expanded.pth", {"w": torch.ones(1, 3).expand(4, 3)}, "repeated values (expand)")
refuse("refused_nothing.pth", {"epoch": 1}, "contains no tensors")
refuse("refused_script.pt", None, "TorchScript", lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path))

lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(content)}" for name, content in EXPECTED.items())
(HERE / "expected.json").write_text('{"files": {\n' + lines + '},\n"refused": ' + json.dumps(REFUSED, indent=1) + "}\n")
(HERE / "VERSIONS").write_text(f"torch {torch.__version__}\nnumpy {numpy.__version__}\n")
