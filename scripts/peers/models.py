"""The models of the inference comparisons, in the peers' formats: exported from torchvision with random weights, and quantized by the tools
of each peer on the same random images."""
import contextlib
import pathlib
import tempfile

from environment import environment
from measure import PEERS, output_of, say

SAMPLES = 64  # images for calibration


def python():
    return environment("torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf")


class Models:
    """The files of one model in `folder`, created on first use."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name

    def path(self, suffix):
        return self.folder / f"{self.name}.{suffix}"

    def made(self, path, *command):
        if not path.exists():
            say(f"making {path.name}")
            output_of([python(), *command])
        return path

    @property
    def weights(self):
        self.onnx
        return self.path("pth")

    @property
    def onnx(self):
        return self.made(self.path("onnx"), PEERS / "torch_export.py", self.name, self.path("pth"), self.path("onnx"))

    def onnx_int8(self, kind):
        """`kind`: s8s8 or u8s8, the types of activations and weights."""
        path = self.path(f"{kind}.onnx")
        return self.made(path, PEERS / "quantize_onnx.py", self.onnx, path, kind, SAMPLES)

    @property
    def openvino_int8(self):
        path = self.path("nncf.xml")
        return self.made(path, PEERS / "quantize_openvino.py", self.onnx, path, SAMPLES)

    def galley_int8(self, args, *overrides):
        """Created in each call, since Galley changes."""
        recipe, statistics = f"benchmark/{self.name}_synthetic", self.path("calib")
        path = self.path(f"galley{''.join(overrides).replace('=', '-')}.safetensors")
        output_of([
            args.bin / "galley-calibrate", recipe, f"weights={self.weights}", f"data.calibration.samples={SAMPLES}",
            "data.calibration.batch=16", "data.calibration.pipeline=train", "--threads", args.threads, "--quiet", "-o", statistics
        ])
        output_of([
            args.bin / "galley-quantize", recipe, f"weights={self.weights}", *overrides, "--calibration", statistics, "--threads",
            args.threads, "--quiet", "-o", path
        ])
        return path


def bytes_of(path):
    """The size of a model's file together with the file of its weights."""
    companions = [path.with_suffix(".bin"), path.with_name(path.name + ".data")]
    return sum(file.stat().st_size for file in [path, *companions] if file.exists() and (file == path or path.suffix in (".xml", ".onnx")))


@contextlib.contextmanager
def work_folder(args):
    """The folder for models: that of --work, or a temporary one."""
    if args.work:
        args.work.mkdir(parents=True, exist_ok=True)
        yield args.work.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)
