"""Makes golden losses of quantization-aware training: torch.ao's ConvBnReLU2d and Linear for a few steps of SGD.

python tests/golden/qat/make.py   (torch 2.15, safetensors); writes data.safetensors, weights.safetensors and losses.json to its folder.
"""
import json
import os

import torch
import torch.ao.nn.intrinsic.qat
import torch.ao.nn.qat
from safetensors.torch import save_file
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, PerChannelMinMaxObserver, QConfig

STEPS, BATCH = 4, 8
FOLDER = os.path.dirname(os.path.abspath(__file__))


class PresentRange(PerChannelMinMaxObserver):
    """Observes only the range of the current weight, without a history."""

    def forward(self, x):
        self.min_val.resize_(0)
        self.max_val.resize_(0)
        return super().forward(x)


activation = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver,
                                    quant_min=0,
                                    quant_max=255,
                                    dtype=torch.quint8,
                                    averaging_constant=0.01)
weight = FakeQuantize.with_args(observer=PresentRange,
                                quant_min=-127,
                                quant_max=127,
                                dtype=torch.qint8,
                                qscheme=torch.per_channel_symmetric,
                                ch_axis=0)
qconfig = QConfig(activation=activation, weight=weight)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = activation()
        self.conv = torch.ao.nn.intrinsic.qat.ConvBnReLU2d(3, 8, 3, padding=1, bias=False, qconfig=qconfig)
        self.out = activation()
        self.fc = torch.ao.nn.qat.Linear(8 * 64, 4, qconfig=qconfig)

    def forward(self, x):
        return self.fc(self.out(self.conv(self.quant(x))).flatten(1))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model().train()
norm = model.conv.bn
with torch.no_grad():
    norm.weight.uniform_(0.5, 1.5)
    norm.bias.uniform_(-0.3, 0.3)
    norm.running_mean.uniform_(-0.2, 0.2)
    norm.running_var.uniform_(0.5, 1.5)
x, y = torch.randn(STEPS * BATCH, 3, 8, 8), torch.randint(0, 4, (STEPS * BATCH,))
names = {
    "conv1.weight": model.conv.weight, "bn1.weight": norm.weight, "bn1.bias": norm.bias, "bn1.running_mean": norm.running_mean,
    "bn1.running_var": norm.running_var, "bn1.num_batches_tracked": torch.tensor(0), "fc.weight": model.fc.weight, "fc.bias": model.fc.bias
}
save_file({"input": x, "label": y}, FOLDER + "/data.safetensors")
save_file({name: value.detach().clone() for name, value in names.items()}, FOLDER + "/weights.safetensors")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for step in range(STEPS):
    batch = slice(step * BATCH, (step + 1) * BATCH)
    loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with open(FOLDER + "/losses.json", "w") as file:
    json.dump(losses, file)
    file.write("\n")
