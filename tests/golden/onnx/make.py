"""Makes the ONNX files of this folder and PyTorch's results for them (expected.safetensors: NAME.input, NAME.output).

Run with PyTorch, onnx, onnxruntime and safetensors installed (VERSIONS): python make.py. The weights are random.
Exported by torch.onnx.export from a trace (dynamo=False), folded and not folded, and quantized by ONNX Runtime's tool.
"""
import pathlib
import sys

import numpy
import torch
from safetensors.torch import save_file
from torch import nn

here = pathlib.Path(__file__).resolve().parent


class Cnn(nn.Module):
    """Parts of convolutional networks: strides, groups, ceil mode, padding that counts, a gate."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8, eps=1e-3)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Hardsigmoid())
        self.mean = nn.AvgPool2d(3, 1, padding=1)
        self.expand = nn.Conv2d(8, 16, 1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(16 * 4, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        y = nn.functional.hardswish(self.bn2(self.depthwise(x)))
        y = y * self.gate(y)
        x = torch.cat([x, y], 1).chunk(2, 1)
        x = self.mean(x[0] + x[1])
        x = nn.functional.silu(self.expand(x))
        x = nn.functional.adaptive_avg_pool2d(nn.functional.relu6(x), 2)
        return self.fc(self.dropout(torch.flatten(x, 1)))


class Transformer(nn.Module):
    """Patch tokens, one attention block, gelu in both forms."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.zeros(1, 17, 16))
        self.norm1, self.norm2 = nn.LayerNorm(16, eps=1e-6), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        a = torch.softmax(q @ k.transpose(-2, -1) * (c // 2) ** -0.5, -1) @ v
        x = x + self.proj(a.transpose(1, 2).reshape(n, t, c))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(nn.functional.gelu(x[:, 0], approximate="tanh"))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.out = nn.Linear(4, 11)

    def forward(self, x):
        return self.out(self.gru(self.lstm(self.table(x))[0])[0])


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.dtype != torch.float32:
                continue
            draw = torch.empty_like(value).uniform_(-1, 1, generator=generator)
            fan = value[0].numel() if value.dim() > 1 else 1
            value.copy_(1 + 0.3 * draw if name.endswith("running_var") else draw * (3 / fan)**0.5 if value.dim() > 1 else 0.3 * draw +
                        (1 if "norm" in name and name.endswith("weight") or "bn" in name and name.endswith("weight") else 0))
    return model.eval()


def main():
    expected = {}

    def export(name, model, example, folding):
        torch.onnx.export(model, (example, ),
                          here / f"{name}.onnx",
                          dynamo=False,
                          opset_version=17,
                          do_constant_folding=folding,
                          input_names=["input"],
                          output_names=["output"],
                          training=torch.onnx.TrainingMode.EVAL if folding else torch.onnx.TrainingMode.PRESERVE,
                          dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}})
        with torch.no_grad():
            expected[f"{name}.input"], expected[f"{name}.output"] = example, model(example)

    torch.manual_seed(0)
    image = torch.randn(3, 3, 18, 16)
    export("cnn_folded", random_weights(Cnn(), 1), image, True)
    export("cnn_named", random_weights(Cnn(), 1), image, False)
    export("transformer", random_weights(Transformer(), 2), torch.randn(3, 3, 16, 16), True)
    export("recurrent", random_weights(Recurrent(), 3), torch.randint(0, 11, (3, 6)), True)

    # int8 weights with one scale per channel, uint8 activations; the outputs are ONNX Runtime's.
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([{"input": image.numpy()}])

        def get_next(self):
            return next(self.batches, None)

    quantize_static(here / "cnn_folded.onnx",
                    here / "cnn_qdq.onnx",
                    Reader(),
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8)
    # Computed without optimizations: on processors without VNNI the optimized kernels saturate sums of uint8 and int8 products at 16 bits.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(here / "cnn_qdq.onnx", options)
    expected["cnn_qdq.input"] = image
    expected["cnn_qdq.output"] = torch.from_numpy(session.run(None, {"input": image.numpy()})[0])
    save_file({name: value.clone().contiguous() for name, value in expected.items()}, here / "expected.safetensors")
    (here / "VERSIONS").write_text(
        f"torch {torch.__version__}\nonnxruntime {onnxruntime.__version__}\nnumpy {numpy.__version__}\npython {sys.version.split()[0]}\n")


if __name__ == "__main__":
    main()
