#!/usr/bin/env python3
"""Makes decoders.txt: results of transformers' decoder models of tiny sizes, and rotary frequencies, in float64.

Run: python make_decoders.py > decoders.txt   (torch, transformers, peft; the versions are in the file's first line)

Weights are golden_state of golden_values.py, a function of name and index, so that the file has only results. Each model:
`case NAME`, then `KEY full|sample COUNT VALUES` as in tests/nn/golden_file.h: `logits`, `loss` (the mean over targets that are not -100),
`grad:PARAMETER`, and after five AdamW steps on other tokens `lossI` and `after:PARAMETER`. `rope:NAME` has the attention factor and the
frequencies of rope_parameters. Cases and options: tests/nn/decoder_golden.h.

`case lora_NAME` is a model with adapters of PEFT (golden weights too): `logits`, `loss` and the gradients of the adapters.

transformers computes rotary angles and norms in float32 whatever the model's dtype; float32 is double here, so that both sides are exact.
"""
import torch

torch.float = torch.float32 = torch.float64
torch.Tensor.float = torch.Tensor.double
import peft
import transformers
from torch.nn import functional as F
from transformers import GPT2Config, GPTNeoConfig, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config
from transformers.pytorch_utils import Conv1D
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from golden_values import golden_state, show

torch.set_default_dtype(torch.float64)
VOCABULARY = 13


def tokens_of(name, length):
    """Two rows of tokens and of targets, the last target ignored: multiples of a step modulo the vocabulary."""
    step = sum(name.encode()) % 5 + 2
    tokens = torch.tensor([[(i * i * step + 3 * i + row * 5) % VOCABULARY for i in range(length)] for row in range(2)])
    targets = torch.tensor([[(i * step + 7 * row + 1) % VOCABULARY for i in range(length)] for row in range(2)])
    targets[1, -1] = -100
    return tokens, targets


def case(name, config, length):
    config.vocab_size = VOCABULARY
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).double()
    parameters = dict(model.named_parameters())
    print("case", name)

    # GPT-2's matrices are [in,out]; here, as in Galley, [out,in].
    transposed = {key + ".weight" for key, module in model.named_modules() if isinstance(module, Conv1D)}

    def show_parameter(prefix, key, array):
        show(prefix + key, array.T if key in transposed else array)

    def restart():
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(golden_state(key, parameter.shape[::-1]).T if key in transposed else golden_state(key, parameter.shape))

    def loss_of(logits, targets):
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))

    restart()
    model.train()
    tokens, targets = tokens_of(name, length)
    logits = model(tokens, use_cache=False).logits
    loss = loss_of(logits, targets)
    loss.backward()
    show("logits", logits, full=True)
    show("loss", loss)
    for key, parameter in parameters.items():
        show_parameter("grad:", key, parameter.grad)
    restart()
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.05)
    for step in range(5):
        tokens, targets = tokens_of(name + str(step), length)
        optimizer.zero_grad()
        loss = loss_of(model(tokens, use_cache=False).logits, targets)
        loss.backward()
        optimizer.step()
        show(f"loss{step}", loss)
    for key, parameter in parameters.items():
        show_parameter("after:", key, parameter)


def lora(name, config, length, targets, rank=3, alpha=6):
    config.vocab_size = VOCABULARY
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).double()
    transposed = {key + ".weight" for key, module in model.named_modules() if isinstance(module, Conv1D)}
    adapters = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=bool(transposed))
    model = peft.get_peft_model(model, adapters)
    trained = {}
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            key = key.replace("base_model.model.", "").replace(".base_layer", "").replace(".default", "")
            parameter.copy_(golden_state(key, parameter.shape[::-1]).T if key in transposed else golden_state(key, parameter.shape))
            assert parameter.requires_grad == ("lora_" in key)
            if parameter.requires_grad:
                trained[key] = parameter
    print("case lora_" + name)
    model.train()
    tokens, labels = tokens_of(name, length)
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
    loss.backward()
    show("logits", logits, full=True)
    show("loss", loss)
    for key, parameter in trained.items():
        show("grad:" + key, parameter.grad)


def rope(name, tokens=None, max_positions=64, dims=16, **parameters):
    config = LlamaConfig(hidden_size=dims, num_attention_heads=1, max_position_embeddings=max_positions, rope_parameters=dict(parameters))
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, seq_len=tokens)
    print("case rope_" + name)
    show("factor", torch.tensor(factor))
    show("frequencies", frequencies, full=True)


def qwen2():
    return Qwen2Config(**QWEN2,
                       tie_word_embeddings=True,
                       use_sliding_window=True,
                       sliding_window=4,
                       layer_types=["full_attention", "sliding_attention"],
                       rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, **THETA))


def continued(name, config, prompt, length):
    """Logits of the next token after a prompt, and after each further token up to `length`, with transformers' key-value cache."""
    config.vocab_size = VOCABULARY
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(golden_state(key, parameter.shape))
        tokens, _ = tokens_of(name, length)
        cache, logits = transformers.DynamicCache(), []
        for begin, end in [(0, prompt)] + [(t, t + 1) for t in range(prompt, length)]:
            logits.append(model(tokens[:, begin:end], past_key_values=cache, use_cache=True).logits[:, -1])
    print("case", name)
    show("logits", torch.stack(logits, 1), full=True)


LLAMA = dict(hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=16)
GROUPED = LLAMA | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=6)
QWEN2 = LLAMA | dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2)
THETA = dict(rope_theta=100.0)
GPT2 = dict(n_layer=2, n_head=2, n_embd=8, n_positions=12, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
NEO = dict(num_layers=2, num_heads=2, hidden_size=8, max_position_embeddings=12, window_size=3, attention_types=[[["global", "local"], 1]])

print("# torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)
case("gpt2", GPT2Config(**GPT2), 7)
case("gpt2_variant",
     GPT2Config(**GPT2, n_inner=20, activation_function="gelu", scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False), 7)
case("gpt_neo", GPTNeoConfig(**NEO), 9)
case(
    "gpt_neo_variant",
    GPTNeoConfig(**(NEO | dict(attention_types=[[["local"], 2]], intermediate_size=12, activation_function="relu")),
                 tie_word_embeddings=False), 9)
case("llama2", LlamaConfig(**LLAMA, rope_parameters=dict(rope_type="default", **THETA)), 7)
case(
    "llama3",
    LlamaConfig(**GROUPED,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                rope_parameters=dict(rope_type="llama3",
                                     rope_theta=50.0,
                                     factor=8.0,
                                     low_freq_factor=1.0,
                                     high_freq_factor=4.0,
                                     original_max_position_embeddings=20)), 9)
case(
    "llama_biases",
    LlamaConfig(**GROUPED,
                attention_bias=True,
                mlp_bias=True,
                hidden_act="gelu",
                rope_parameters=dict(rope_type="linear", factor=4.0, **THETA)), 7)
case("llama_dynamic",
     LlamaConfig(**(LLAMA | dict(max_position_embeddings=6)), rope_parameters=dict(rope_type="dynamic", factor=2.0, **THETA)), 9)
DYNAMIC = dict(rope_type="dynamic", factor=2.0, **THETA)
for length in (4, 9):
    continued(f"dynamic_after_{length}", LlamaConfig(**(GROUPED | dict(max_position_embeddings=6)), rope_parameters=DYNAMIC), length, 12)
case("mistral", MistralConfig(**GROUPED, sliding_window=3, rope_parameters=dict(rope_type="default", **THETA)), 9)
case("qwen2", qwen2(), 9)
case("qwen3", Qwen3Config(**GROUPED, attention_bias=True, rope_parameters=dict(rope_type="default", **THETA)), 9)
FACTORS = dict(short_factor=[1.0, 1.25, 1.5], long_factor=[1.5, 3.0, 7.0], original_max_position_embeddings=6)
case("qwen3_long", Qwen3Config(**GROUPED, rope_parameters=dict(rope_type="longrope", **FACTORS, **THETA)), 9)
case("qwen3_short", Qwen3Config(**GROUPED, rope_parameters=dict(rope_type="longrope", **FACTORS, **THETA)), 6)
PHI3 = LLAMA | dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, pad_token_id=None)
PART = dict(partial_rotary_factor=0.75, **THETA)
case("phi3", Phi3Config(**PHI3, sliding_window=4, rope_parameters=dict(rope_type="default", **PART)), 9)
case(
    "phi3_long",
    Phi3Config(**PHI3,
               original_max_position_embeddings=6,
               rope_parameters=dict(rope_type="longrope", short_factor=[1.0, 1.25], long_factor=[1.5, 3.0], **PART)), 9)

ATTENTION, GATED = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
lora("gpt2", GPT2Config(**GPT2), 7, ["c_attn", "c_proj", "c_fc"])
lora("gpt_neo", GPTNeoConfig(**NEO), 9, ["k_proj", "v_proj", "q_proj", "out_proj", "c_fc", "c_proj"])
lora("llama2", LlamaConfig(**LLAMA, rope_parameters=dict(rope_type="default", **THETA)), 7, ATTENTION + GATED + ["lm_head"])
lora("mistral", MistralConfig(**GROUPED, sliding_window=3, rope_parameters=dict(rope_type="default", **THETA)), 9, ATTENTION + GATED)
lora("qwen2", qwen2(), 9, ["q_proj", "v_proj"])
lora("qwen3", Qwen3Config(**GROUPED, attention_bias=True, rope_parameters=dict(rope_type="default", **THETA)), 9, ATTENTION + GATED)

rope("linear", rope_type="linear", rope_theta=10000.0, factor=3.0)
rope("dynamic_short", tokens=40, rope_type="dynamic", rope_theta=10000.0, factor=2.0)
rope("dynamic_long", tokens=100, rope_type="dynamic", rope_theta=10000.0, factor=2.0)
rope("yarn", rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
rope("yarn_mscale",
     rope_type="yarn",
     rope_theta=10000.0,
     factor=40.0,
     original_max_position_embeddings=4096,
     mscale=1.0,
     mscale_all_dim=0.8)
rope("yarn_bounds",
     rope_type="yarn",
     rope_theta=500.0,
     factor=4.0,
     original_max_position_embeddings=64,
     attention_factor=1.5,
     beta_fast=8.0,
     beta_slow=2.0,
     truncate=False)
rope("llama3",
     max_positions=131072,
     rope_type="llama3",
     rope_theta=500000.0,
     factor=8.0,
     low_freq_factor=1.0,
     high_freq_factor=4.0,
     original_max_position_embeddings=8192)
LONG = dict(rope_type="longrope",
            rope_theta=10000.0,
            short_factor=[1.0 + i / 8 for i in range(8)],
            long_factor=[2.0 + i for i in range(8)],
            original_max_position_embeddings=32)
for rope_type in ("linear", "dynamic", "yarn", "llama3"):
    rope(f"{rope_type}_part",
         tokens=100,
         rope_type=rope_type,
         rope_theta=1000.0,
         factor=4.0,
         partial_rotary_factor=0.8,
         **{
             "yarn": dict(original_max_position_embeddings=16),
             "llama3": dict(original_max_position_embeddings=32, low_freq_factor=1.0, high_freq_factor=4.0)
         }.get(rope_type, {}))
rope("longrope_short", tokens=32, **LONG)
rope("longrope_long", tokens=33, **LONG)
rope("longrope_factor", tokens=33, factor=8.0, **LONG)
