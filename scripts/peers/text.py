"""Transformers against their peers: training steps of GPTs against PyTorch, encoders against ONNX Runtime, OpenVINO and PyTorch, and
decoding against PyTorch, CTranslate2 and llama.cpp."""
import decoding
import encoders
import gpt_training

PARTS = [gpt_training, encoders, decoding]
MODELS = [name for part in PARTS for name in part.WORK]


def compare(args):
    chosen = args.only
    for part in PARTS:
        args.only = [name for name in chosen if name in part.WORK]
        if args.only:
            part.compare(args)
