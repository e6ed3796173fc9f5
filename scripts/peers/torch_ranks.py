"""Times training steps of PyTorch on several ranks (gloo): DDP or FSDP2. One JSON line on stdout, of rank 0.

usage: torch_ranks.py MODEL GLOBAL_BATCH STEPS {ddp|fsdp} RANKS THREADS
MODEL: resnet50, or a GPT of gpt_model.py with 256 tokens. Each rank has its part of the batch. FSDP2 wraps the blocks of the model.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpt_model import GPT, SIZES, Block
from timing import report

LENGTH = 256


def build(name, batch, strategy):
    """The model, its units, its optimizer, and a function that computes the loss. FSDP2 takes contiguous parameters only."""
    if name in SIZES:
        model = GPT(*SIZES[name])
        ids = torch.randint(0, model.vocabulary, (batch, LENGTH + 1))
        optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)
        loss = lambda forward: torch.nn.functional.cross_entropy(forward(ids[:, :-1]).view(-1, SIZES[name][3]), ids[:, 1:].reshape(-1))
        return model, [module for module in model.modules() if isinstance(module, Block)], optimizer, loss
    import torchvision
    model = getattr(torchvision.models, name)()
    if strategy == "ddp":
        model = model.to(memory_format=torch.channels_last)
    data = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    target = torch.randint(0, 1000, (batch,))
    units = [model.layer1, model.layer2, model.layer3, model.layer4]
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)
    return model, units, optimizer, lambda forward: torch.nn.functional.cross_entropy(forward(data), target)


def rank_main(rank, name, batch, steps, strategy, ranks, threads, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model, units, make_optimizer, loss_of = build(name, batch // ranks, strategy)
    model.train()
    if strategy == "fsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        for unit in units:
            fully_shard(unit, mesh=mesh)
        fully_shard(model, mesh=mesh)
        forward = model
    else:
        forward = DistributedDataParallel(model)
    optimizer = make_optimizer(model.parameters())
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(forward)
        loss.backward()
        if name in SIZES:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        times.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        report(times[2:], torch.__version__)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    model_name, global_batch, timed, kind, count, own_threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *map(
        int, sys.argv[5:7])
    multiprocessing.spawn(rank_main, (model_name, global_batch, timed, kind, count, own_threads, number), nprocs=count)
