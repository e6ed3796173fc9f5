"""Makes encoders.txt: outputs, losses, gradients and updates of small encoders in float64, by transformers.

Run: python make_encoders.py > encoders.txt   (PyTorch and transformers; their versions are in the file's first line)
Each case: "case NAME TYPE HEAD KEY=VALUE...", the options of the model in a recipe, then arrays "NAME shape | values". Parameters are those
of `value` below, which the test computes too. Arrays: one for each output; loss, and d_<name>, the gradients of the loss: of all parameters
with the head masked_lm, else of the parameters of the head and of one in the middle; with the head masked_lm also p_<name>, the parameters
after five steps of AdamW(lr 0.01, eps 1e-4, weight decay 0.01) on the same batch.
"""
import math

import torch
import transformers
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
VOCABULARY, LABELS, LENGTH = 9, 3, 6
IDS = torch.tensor([[2, 5, 8, 3, 7, 4], [6, 3, 5, 2, 1, 1]])  # 1: the padding of RoBERTa
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TYPES = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]])
MASKED = torch.tensor([[-100, 4, -100, 3, -100, -100], [6, -100, 8, -100, -100, -100]])
CLASSES = torch.tensor([2, 0])
TOKEN_CLASSES = torch.tensor([[0, 1, 2, 1, 0, -100], [2, 2, 1, 0, -100, -100]])
STARTS, ENDS = torch.tensor([1, 0]), torch.tensor([4, 2])
HEADS = {"none": "Model", "masked_lm": "ForMaskedLM", "sequence_classification": "ForSequenceClassification",
         "token_classification": "ForTokenClassification", "question_answering": "ForQuestionAnswering", "embedding": "Model",
         "replaced_tokens": "ForPreTraining"}
BERT = dict(vocab_size=VOCABULARY, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
            max_position_embeddings=8, type_vocab_size=2, layer_norm_eps=1e-5)
FAMILIES = {
    "bert": ("Bert", BERT),
    "roberta": ("Roberta", {**BERT, "max_position_embeddings": 9, "pad_token_id": 1, "hidden_act": "silu"}),
    "electra": ("Electra", {**BERT, "embedding_size": 3, "hidden_act": "relu"}),
    "distilbert": ("DistilBert", dict(vocab_size=VOCABULARY, dim=4, n_layers=2, n_heads=2, hidden_dim=6, max_position_embeddings=8)),
    "albert": ("Albert", {**BERT, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2, "embedding_size": 3,
                          "hidden_act": "gelu_new"}),
}
RENAMED = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"}
POOLINGS = ["pooler", "mean", "cls"]
ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu"]


def value(name, index, is_norm):
    wave = math.sin(1.3 * (index + 1) + 0.37 * (sum(name.encode()) % 101))
    return 1 + 0.3 * wave if is_norm else 0.5 * wave


def show(name, array):
    print(name, *array.shape, "|", *("%.14g" % float(v) for v in array.detach().reshape(-1)))


def own_name(name):
    """The bias of a tied head has the name under which files have it."""
    return {"cls.predictions.decoder.bias": "cls.predictions.bias", "lm_head.decoder.bias": "lm_head.bias",
            "predictions.decoder.bias": "predictions.bias"}.get(name, name)


class PooledClassifier(torch.nn.Module):
    """A sequence classifier that reads the mean over the tokens, or the first one: classifier_pooling."""

    def __init__(self, family, encoder, pooling):
        super().__init__()
        self.add_module(family, encoder)
        self.family, self.pooling = family, pooling
        self.classifier = torch.nn.Linear(4, LABELS)

    def forward(self, attention_mask, **inputs):
        hidden = getattr(self, self.family)(attention_mask=attention_mask, **inputs).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        pooled = (hidden * mask).sum(1) / mask.sum(1) if self.pooling == "mean" else hidden[:, 0]
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.classifier(pooled))


def make(prefix, head, options, pooling):
    config = getattr(transformers, prefix + "Config")(**options, num_labels=2 if head == "question_answering" else LABELS)
    config._attn_implementation = "eager"
    for key in [k for k in vars(config) if "dropout" in k and not isinstance(getattr(config, k), str)]:
        setattr(config, key, 0.0)
    bare = head == "embedding" or pooling != "pooler"
    extra = {"add_pooling_layer": False} if bare and prefix not in ("Electra", "DistilBert") else {}
    model = getattr(transformers, prefix + ("Model" if bare else HEADS[head]))(config, **extra)
    if pooling != "pooler":
        model = PooledClassifier(prefix.lower(), model, pooling)
    model = model.double()
    norms = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.LayerNorm)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = [value(own_name(name), i, id(p) in norms) for i in range(p.numel())]
            p.copy_(torch.tensor(values).reshape(p.shape))
    return model


def run(model, head, family):
    types = {} if family in ("distilbert", "roberta") else {"token_type_ids": TYPES}
    out = model(input_ids=IDS, attention_mask=MASK, **types)
    if head == "none":
        named = {"last_hidden_state": out.last_hidden_state}
        if out.get("pooler_output") is not None:
            named["pooler_output"] = out.pooler_output
        weights = [torch.arange(v.numel()).reshape(v.shape) * 0.1 for v in named.values()]
        # Padding counts for nothing.
        weights[0] = weights[0] * MASK.unsqueeze(-1)
        return named, sum((v * w).sum() for v, w in zip(named.values(), weights))
    if head == "embedding":
        mask = MASK.unsqueeze(-1)
        mean = (out.last_hidden_state * mask).sum(1) / mask.sum(1)
        vector = F.normalize(mean, dim=1)
        return {"embedding": vector}, (vector * torch.arange(vector.numel()).reshape(vector.shape)).sum()
    if head == "question_answering":
        loss = (F.cross_entropy(out.start_logits, STARTS) + F.cross_entropy(out.end_logits, ENDS)) / 2
        return {"start_logits": out.start_logits, "end_logits": out.end_logits}, loss
    logits = out.logits
    if head == "replaced_tokens":
        return {"logits": logits}, (logits * MASK * torch.arange(logits.numel()).reshape(logits.shape)).sum()
    targets = {"masked_lm": MASKED, "sequence_classification": CLASSES, "token_classification": TOKEN_CLASSES}[head]
    return {"logits": logits}, F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def case(family, head, pooling="pooler"):
    prefix, options = FAMILIES[family]
    model = make(prefix, head, options, pooling)
    named, loss = run(model, head, family)
    loss.backward()
    settings = {RENAMED.get(k, k): v for k, v in options.items()}
    settings["num_labels"] = LABELS
    if "hidden_act" in settings:
        settings["hidden_act"] = ACTIVATIONS.index(settings["hidden_act"])
    name = f"{family}_{head}"
    if pooling != "pooler":
        name += "_" + pooling
        settings["classifier_pooling"] = POOLINGS.index(pooling)
    print("case", name, family, head, *(f"{k}={v}" for k, v in settings.items()))
    for name, array in named.items():
        show(name, array)
    show("loss", loss)
    parameters = {own_name(name): p for name, p in model.named_parameters()}
    middle = [n for n in parameters if ".1." in n and n.endswith("bias")][:1]
    for name, p in parameters.items():
        if head == "masked_lm" or name in middle or not name.startswith(family + ".") and p.grad is not None and head not in ("none",
                                                                                                                              "embedding"):
            show("d_" + name, p.grad)
    if head != "masked_lm":
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, weight_decay=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        run(model, head, family)[1].backward()
        optimizer.step()
    for name, p in parameters.items():
        show("p_" + name, p)


print("# torch", torch.__version__, "transformers", transformers.__version__)
for family in FAMILIES:
    for head in HEADS:
        if head != "replaced_tokens" or family == "electra":
            case(family, head)
for family in FAMILIES:
    for pooling in POOLINGS[1:]:
        case(family, "sequence_classification", pooling)
