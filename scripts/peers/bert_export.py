"""Exports a BERT-base encoder with random weights for the peers and for Galley.

usage: bert_export.py FOLDER
Writes a hub folder (config.json, model.safetensors), bert.onnx and bert_int8.onnx (dynamic, by ONNX Runtime).
"""
import pathlib
import sys

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import BertConfig, BertModel

LENGTH = 128
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
model = BertModel(BertConfig(attn_implementation="eager")).eval()
model.save_pretrained(folder)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


names = ["input_ids", "attention_mask", "token_type_ids"]
example = (torch.ones(2, LENGTH, dtype=torch.long), torch.ones(2, LENGTH, dtype=torch.long), torch.zeros(2, LENGTH, dtype=torch.long))
batch = torch.export.Dim("batch")
torch.onnx.export(Encoder(), example, folder / "bert.onnx", input_names=names, output_names=["last", "pooled"], dynamo=True,
                  dynamic_shapes=({0: batch}, {0: batch}, {0: batch}), external_data=False)
quantize_dynamic(folder / "bert.onnx", folder / "bert_int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
