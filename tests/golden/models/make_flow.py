#!/usr/bin/env python3
"""Makes the golden files of optical flow in this folder: results of torchvision's RAFT.

    python3 tests/golden/models/make_flow.py

Needs torch and torchvision. Weights and images are those of make_golden.py. raft_large.txt and raft_small.txt have, for narrow models and
small images in float64: the flow in evaluation, the flows of all updates in training, the loss of the sequence, samples of its gradients
and of running statistics. flow_models.txt has the parameters and buffers of the models, as zoo.txt.
"""
import os
import pathlib

import torch
import torchvision
from torchvision.models.optical_flow import raft

from make_golden import Writer, golden, prepare

HERE = pathlib.Path(__file__).resolve().parent
UPDATES = 3
coordinates = raft.make_coords_grid
raft.make_coords_grid = lambda *sizes: coordinates(*sizes).double()  # torchvision's are float32


def small_encoders(block, context_norm):
    return dict(feature_encoder_layers=(8, 8, 12, 16, 20), feature_encoder_block=block, feature_encoder_norm_layer=torch.nn.InstanceNorm2d,
                context_encoder_layers=(8, 8, 12, 16, 24), context_encoder_block=block, context_encoder_norm_layer=context_norm,
                corr_block_num_levels=2, corr_block_radius=2, recurrent_block_hidden_state_size=10, flow_head_hidden_size=9)


def write(file, model):
    torch.set_default_dtype(torch.float64)
    model = prepare(model)
    shape = (2, 3, 32, 40)
    image1, image2 = golden("image1", shape), golden("image2", shape)
    flow = golden("target", (2, 2, 32, 40), 5.0)
    valid = golden("valid", (2, 32, 40)) > -0.5
    w = Writer(digits=9)
    model.eval()
    with torch.no_grad():
        w.full("flow", model(image1, image2, num_flow_updates=UPDATES)[-1][0])
    model.train()
    flows = model(image1, image2, num_flow_updates=UPDATES)
    for i, predicted in enumerate(flows):
        w.sample(f"flow{i}", predicted)
    # The paper's loss: later updates weigh more; pixels that are not valid count as zeros.
    loss = sum(0.8 ** (UPDATES - 1 - i) * ((predicted - flow).abs() * valid[:, None]).mean() for i, predicted in enumerate(flows))
    w.sample("loss", loss)
    loss.backward()
    for name, parameter in model.named_parameters():
        w.sample(f"grad:{name}", parameter.grad)
    for name, value in model.named_buffers():
        if not name.endswith("num_batches_tracked"):
            w.sample(f"buffer:{name}", value)
    w.save(file)
    torch.set_default_dtype(torch.float32)


def write_names():
    lines = []
    for name in ("raft_large", "raft_small"):
        model = getattr(torchvision.models.optical_flow, name)(weights=None)
        parameters = dict(model.named_parameters())
        lines.append(f"model {name} {sum(p.numel() for p in parameters.values())}")
        before = ""
        for key, value in model.state_dict().items():
            shared = len(os.path.commonprefix([before, key]))
            lines.append(f"{'p' if key in parameters else 'b'} {shared} {key[shared:]} {','.join(map(str, value.shape)) or '-'}")
            before = key
    (HERE / "flow_models.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_names()
    write("raft_large", raft._raft(
        weights=None, progress=False, **small_encoders(raft.ResidualBlock, torch.nn.BatchNorm2d), motion_encoder_corr_layers=(12, 10),
        motion_encoder_flow_layers=(8, 6), motion_encoder_out_channels=11, recurrent_block_kernel_size=((1, 5), (5, 1)),
        recurrent_block_padding=((0, 2), (2, 0)), use_mask_predictor=True))
    write("raft_small", raft._raft(
        weights=None, progress=False, **small_encoders(raft.BottleneckBlock, None), motion_encoder_corr_layers=(12,),
        motion_encoder_flow_layers=(8, 6), motion_encoder_out_channels=11, recurrent_block_kernel_size=(3,),
        recurrent_block_padding=(1,), use_mask_predictor=False))
