"""Times inference by PyTorch, channels_last. usage: torch_infer.py MODEL WEIGHTS.pth {eager|compile} BATCH THREADS SECONDS [PRECISION]"""
import sys

import torch
import torchvision

from timing import report, timed

name, weights, mode, batch, threads, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
torch.set_num_threads(threads)
model = getattr(torchvision.models, name)()
model.load_state_dict(torch.load(weights))
model = model.eval().to(memory_format=torch.channels_last)
image = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
if sys.argv[7:] == ["bf16"]:
    model, image = model.bfloat16(), image.bfloat16()
if mode == "compile":
    import torch._inductor.config

    torch._inductor.config.freezing = True
    model = torch.compile(model)
with torch.inference_mode():
    report(timed(lambda: model(image), seconds), f"PyTorch {torch.__version__}")
