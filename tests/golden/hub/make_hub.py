"""Makes hub folders as transformers saves them, with random weights, and beside each the results of the model: expected.safetensors.

Run: python make_hub.py   (PyTorch, transformers, tokenizers; their versions are in VERSIONS). Writes folders beside itself.
expected.safetensors: input_ids, attention_mask, token_type_ids where the family has them, and the outputs by their names, in float32.
texts.json in bert_classes: texts and their logits, and the probabilities of the classes; in bert_base: vectors of the texts.
"""
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a fine film dull ##er ##est the story is and was it not very good bad , . ! one two ##s".split()
SIZES = dict(vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
             max_position_embeddings=24, type_vocab_size=2)
TEXTS = [
    "a fine film", "the story is dull and not very good.", "It was the dullest film!", "good",
    "bad bad bad bad bad bad bad bad bad bad bad bad"
]


def save(name, model, shard="5GB", types=True):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.normal_(1 if "norm" in key.lower() and key.endswith("weight") else 0, 0.4)
        model.tie_weights()
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(2, len(WORDS), (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    mask[2, 8:] = 0
    pad = model.config.pad_token_id
    ids[mask == 0] = pad
    feed = {"input_ids": ids, "attention_mask": mask}
    if types:
        feed["token_type_ids"] = (torch.arange(9) > 3).long().expand(3, 9) * mask
    with torch.no_grad():
        out = model(**feed)
    save_file({k: v.contiguous() for k, v in {**feed, **{k: v for k, v in out.items() if isinstance(v, torch.Tensor)}}.items()},
              folder / "expected.safetensors")
    return folder


def tokenizer_of(folder):
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(WORDS[:5])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def texts_of(folder, model, results):
    tokenizer = tokenizer_of(folder)
    rows = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            rows.append({"text": text, "ids": ids[0].tolist(), **results(model(input_ids=ids))})
    (folder / "texts.json").write_text(json.dumps(rows, indent=1))


def vectors(out):
    return {"embedding": torch.nn.functional.normalize(out.last_hidden_state.mean(1), dim=1)[0].tolist()}


torch.manual_seed(1)
transformers.logging.set_verbosity_error()
bert = transformers.BertConfig(**SIZES)
save("bert_masked", transformers.BertForMaskedLM(bert))
base = transformers.BertModel(bert)
texts_of(save("bert_base", base, shard="2KB"), base, vectors)
classes = transformers.BertForSequenceClassification(
    transformers.BertConfig(**SIZES,
                            id2label={0: "negative", 1: "neutral", 2: "positive"},
                            label2id={"negative": 0, "neutral": 1, "positive": 2}))
texts_of(save("bert_classes", classes), classes,
         lambda out: {"logits": out.logits[0].tolist(), "scores": out.logits[0].softmax(0).tolist()})
save("roberta_tokens", transformers.RobertaForTokenClassification(
    transformers.RobertaConfig(**{**SIZES, "type_vocab_size": 1, "max_position_embeddings": 26}, num_labels=3)), types=False)
save("xlm_roberta_masked", transformers.XLMRobertaForMaskedLM(
    transformers.XLMRobertaConfig(**{**SIZES, "type_vocab_size": 1, "max_position_embeddings": 26})), types=False)
save("electra_replaced", transformers.ElectraForPreTraining(transformers.ElectraConfig(**SIZES, embedding_size=6)))
save("electra_masked", transformers.ElectraForMaskedLM(transformers.ElectraConfig(**SIZES, embedding_size=6)))
save("distilbert_answers", transformers.DistilBertForQuestionAnswering(transformers.DistilBertConfig(
    vocab_size=len(WORDS), dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=24, num_labels=2)), types=False)
save("albert_masked", transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SIZES, embedding_size=6)))
save("bert_next", transformers.BertForNextSentencePrediction(transformers.BertConfig(**SIZES)))
SPECIAL = dict(vocab_size=len(WORDS), pad_token_id=0, bos_token_id=None, eos_token_id=None, num_labels=3)
decoder = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**SPECIAL, n_embd=8, n_layer=2, n_head=2, n_positions=24))
texts_of(save("gpt2_classes", decoder, types=False), decoder,
         lambda out: {"logits": out.logits[0].tolist(), "scores": out.logits[0].softmax(0).tolist()})
save("llama_classes", transformers.LlamaForSequenceClassification(transformers.LlamaConfig(
    **SPECIAL, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=12,
    max_position_embeddings=24)), types=False)
save("bert_pretraining", transformers.BertForPreTraining(transformers.BertConfig(**SIZES)))
save("albert_pretraining", transformers.AlbertForPreTraining(transformers.AlbertConfig(**SIZES, embedding_size=6)))

# The names of older files: gamma and beta, the table of positions, a copy of the tied head.
old = HERE / "bert_old"
shutil.rmtree(old, ignore_errors=True)
shutil.copytree(HERE / "bert_masked", old)
tensors = load_file(old / "model.safetensors")
renamed = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v for k, v in tensors.items()}
renamed["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)
renamed["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
renamed["cls.seq_relationship.weight"] = torch.zeros(2, 8)
(old / "model.safetensors").unlink()
torch.save(renamed, old / "pytorch_model.bin")
config = json.loads((old / "config.json").read_text())
del config["architectures"], config["tie_word_embeddings"]
config.update(architectures=["BertForMaskedLM"], torch_dtype="float32")
config.pop("dtype", None)
(old / "config.json").write_text(json.dumps(config, indent=2))
(HERE / "VERSIONS").write_text(f"torch {torch.__version__}, transformers {transformers.__version__}\n")
