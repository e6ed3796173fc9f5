"""Makes the folder bert_answers, a BERT for question answering with random weights, and questions.json in it: what transformers makes of
questions with long contexts.

Run: python make_questions.py   (PyTorch, transformers, tokenizers; their versions are in VERSIONS). Needs the tokenizer of bert_classes.
questions.json: max_length and doc_stride, and of each question its answers, the windows by truncation="only_second" and
return_overflowing_tokens (ids, types, and the positions of the first answer, 0 where the window does not have it, by the offsets), and the
logits of each. answers of `predicted`: the three best spans over all windows of the model's 32 tokens that share 128 or half of their part
of the context, by the sum of their logits, with the softmax of the 20 best, start and end in characters.
questions.jsonl and questions.squad.json: the questions as the source squad reads them.
"""
import json
import math
import pathlib
import shutil

import torch
import transformers

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "bert_answers"
LENGTH, STRIDE, MODEL = 20, 5, 32
CONTEXT = ("The story is dull, and the film was not very good. It was the dullest film! One , two - the film is fine. Is é good? "
           "not bad and good .")
QUESTIONS = [("was it good?", "a fine film", ["fine film", "film"]), ("what is dull", CONTEXT, ["The story"]),
             ("is it?", CONTEXT, ["é good", "good"]),
             ("one two", CONTEXT, []), ("film", CONTEXT, ["dullest film! One"]), ("bad", "good", ["good"])]

transformers.logging.set_verbosity_error()
torch.manual_seed(4)
shutil.rmtree(FOLDER, ignore_errors=True)
words = json.loads((HERE / "bert_classes" / "tokenizer.json").read_text())["model"]["vocab"]
model = transformers.BertForQuestionAnswering(transformers.BertConfig(
    vocab_size=len(words), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=MODEL)).eval()
with torch.no_grad():
    for key, p in model.named_parameters():
        p.normal_(1 if "norm" in key.lower() and key.endswith("weight") else 0, 0.4)
    model.qa_outputs.weight.normal_(0, 2)
model.save_pretrained(FOLDER)
shutil.copy(HERE / "bert_classes" / "tokenizer.json", FOLDER / "tokenizer.json")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"), pad_token="[PAD]",
                                                 model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def windows_of(question, context, length, stride):
    made = tokenizer(question, context, truncation="only_second", max_length=length, stride=stride, return_overflowing_tokens=True,
                     return_offsets_mapping=True)
    for i, ids in enumerate(made["input_ids"]):
        types, offsets = made["token_type_ids"][i], made["offset_mapping"][i]
        places = [k for k, which in enumerate(made.sequence_ids(i)) if which == 1]
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        yield {"ids": ids, "types": types, "offsets": [list(o) for o in offsets], "places": places,
               "start": out.start_logits[0].tolist(), "end": out.end_logits[0].tolist()}


def positions(window, begin, end):
    first, last = window["places"][0], window["places"][-1]
    offsets = window["offsets"]
    if begin is None or offsets[first][0] > begin or offsets[last][1] < end:
        return [0, 0]
    while first + 1 <= window["places"][-1] and offsets[first + 1][0] <= begin:
        first += 1
    while last - 1 >= window["places"][0] and offsets[last - 1][1] >= end:
        last -= 1
    return [first, last]


def predicted(question, context):
    room = MODEL - len(tokenizer(question)["input_ids"]) - 1
    best = {}
    for window in windows_of(question, context, MODEL, min(128, room // 2)):
        for a in window["places"]:
            for b in window["places"]:
                if a <= b < a + 30:
                    key = (window["offsets"][a][0], window["offsets"][b][1])
                    best[key] = max(best.get(key, -math.inf), window["start"][a] + window["end"][b])
    top = sorted(((score, key) for key, score in best.items()), key=lambda item: (-item[0], item[1]))[:20]
    total = sum(math.exp(score - top[0][0]) for score, _ in top)
    return [{"answer": context[key[0]:key[1]], "start": key[0], "end": key[1], "score": math.exp(score - top[0][0]) / total}
            for score, key in top[:3]]


rows, lines, articles = [], [], []
for question, context, answers in QUESTIONS:
    starts = [context.index(answer) for answer in answers]
    begin = starts[0] if starts else None
    windows = list(windows_of(question, context, LENGTH, STRIDE))
    for window in windows:
        window["positions"] = positions(window, begin, begin + len(answers[0]) if answers else None)
        del window["offsets"], window["places"]
    rows.append({"question": question, "context": context, "answers": answers, "windows": windows,
                 "predicted": predicted(question, context)})
    lines.append(json.dumps({"question": question, "context": context, "answers": {"text": answers, "answer_start": starts}},
                            ensure_ascii=False))
    articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [
        {"id": str(len(rows)), "question": question, "answers": [{"text": t, "answer_start": s} for t, s in zip(answers, starts)]}]}]})
text = json.dumps({"max_length": LENGTH, "doc_stride": STRIDE, "questions": rows}, ensure_ascii=False)
(FOLDER / "questions.json").write_text(text + "\n")
(FOLDER / "questions.jsonl").write_text("\n".join(lines) + "\n")
(FOLDER / "questions.squad.json").write_text(json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False) + "\n")
(FOLDER / "generation_config.json").unlink(missing_ok=True)
