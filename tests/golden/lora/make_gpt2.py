"""Makes gpt2: an adapter of PEFT for the folder ../hub/gpt2, whose Conv1D layers store weights as [in, out], and the logits of the merged
model.

Run: python make_gpt2.py      (PyTorch, transformers and peft; their versions are in gpt2/VERSIONS)
c_attn [16, 48], c_proj of attention [16, 16], whose shape does not tell the orientation, and c_fc [16, 64] have adapters.
"""
import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
out = here / "gpt2"
torch.manual_seed(5)
base = transformers.AutoModelForCausalLM.from_pretrained(here.parent / "hub/gpt2")
config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["c_attn", "attn.c_proj", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
model = peft.get_peft_model(base, config)
with torch.no_grad():
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.normal_(0, 0.3)
model.peft_config["default"].base_model_name_or_path = "gpt2"
model.save_pretrained(out)
(out / "README.md").unlink(missing_ok=True)
ids = torch.tensor([[5, 100, 303, 17, 0, 42], [7, 7, 250, 1, 90, 3]])
merged = model.merge_and_unload().eval()
with torch.no_grad():
    save_file({"input_ids": ids, "logits": merged(input_ids=ids).logits.contiguous()}, out / "expected.safetensors")
(out / "VERSIONS").write_text(f"torch {torch.__version__} transformers {transformers.__version__} peft {peft.__version__}\n")
