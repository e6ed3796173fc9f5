#!/usr/bin/env python3
"""Writes the golden files of tests/text: small tokenizers of each family, texts, and what tiktoken, tokenizers and sentencepiece make of
them.

The tokenizers are trained on a text (the repository has the results; tinyshakespeare.txt was used) and on random strings. Random strings
hold code points that utf8proc calls assigned (Unicode 15.0), so that libraries with newer tables agree on them. Where `tokenizers` uses its
own, older tables (normalization, BERT's classes), only texts of Unicode 3.2 are compared; others have null.

usage: make_text_golden.py TEXT [--out DIR] [--strings N] [--seed S]
needs: pip install tiktoken==0.14.0 tokenizers==0.23.3 sentencepiece==0.2.3; libutf8proc
"""
import argparse
import base64
import ctypes
import ctypes.util
import json
import pathlib
import random
import unicodedata

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tiktoken_ext import openai_public

utf8proc = ctypes.CDLL(ctypes.util.find_library("utf8proc") or "libutf8proc.so.2")
ASSIGNED = [c for c in range(0x110000) if utf8proc.utf8proc_category(c) not in (0, 28)]  # neither unassigned nor a surrogate

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPACES = [c for c in ASSIGNED if chr(c).isspace() and not 0x1C <= c <= 0x1F] + [0x200B, 0x180E, 0xFEFF]

HAND = [
    "", " ", "  ", "a", " a", "a ", "a  b", "a   b", "a\tb", "a\t\tb", "a \tb", "\n", "\r\n", "a\n\n  b", "a\n  ", "a  \n", "  \n x",
    "\u3000\u3000a", "don't", "DON'T I'LL we'Re you'VE 'S's", "'\u017f it'\u017fs", "''s", "'ll'll", "HelloWorld HELLOworld helloWORLD",
    "e\u0301te\u0301 \u00e9t\u00e9", "\u0301a", " \u0301\u0301b", "1234567 12 3", "\u0661\u0662\u0663\u0664 \u00bd\u2167", "a.b,c;d!?",
    "x//y/\r\n/z", "...\n\n...", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0130stanbul \u03a3\u03a3 \u00df\u1e9e", "a\u0000b", "\ufeffx", "\ufffd", "[CLS] [MASK][SEP]", "<s> x </s> <mask> <unk>",
    "<|endoftext|>a<|endoftext|>", "a <|im_start|> b", "<|endoftex|>", "##ing ing", "\u2581a \u2581", "\u00a0a\u00a0", "\u0085x",
    "\u1100\u1161\u11a8 \uac01 \u0958 \u212b \ufb01 \u2460", "q\u0307\u0323 \u0344", "a" * 200, " " * 200, "ab" * 100 + " " + "\u00e9" * 90,
    "The quick brown fox's 3rd jump!", "If I'd known, I'd've said: \"no\".", "x" + "\u0300" * 40, "\u01c5\u01c4\u01c6 \u02b0a \u16ee"
]


def is_old(text):
    """Whether Unicode 3.2 assigned all of it: the tables of `tokenizers` for categories and normal forms are older than utf8proc's."""
    return all(unicodedata.ucd_3_2_0.category(c) != "Cn" for c in text)


def random_text(rng):
    """A string whose characters come from a few pools, as texts that break tokenizers do."""
    pools = [
        lambda: chr(rng.choice(ASSIGNED)), lambda: chr(rng.choice(SPACES)), lambda: rng.choice(" \n\r\t  "),
        lambda: rng.choice("abcdefghijklmnopqrstuvwxyz"), lambda: rng.choice("ABCDEstdmlvr"), lambda: rng.choice("0123456789"),
        lambda: rng.choice(["'s", "'T", "'ll", "'Re", "'", "n't", "'ve"]), lambda: rng.choice(".,;:!?-/\\_()[]{}<>@#$%^&*+=|~`\""),
        lambda: chr(rng.choice(range(0x300, 0x370))), lambda: chr(rng.choice(range(0x4E00, 0x9FA6))),
        lambda: chr(rng.choice(range(0x400, 0x500))), lambda: chr(rng.choice(range(0x600, 0x6FF))),
        lambda: rng.choice(["\u200d", "\U0001f469", "\U0001f3fd", "\ufe0f", "\u2764"]), lambda: chr(rng.choice(range(0xAC00, 0xD7A4))),
        lambda: chr(rng.choice(range(0x900, 0x980))), lambda: chr(rng.choice(range(0xC0, 0x250)))
    ]
    chosen = rng.sample(pools, rng.randint(1, 6))
    return "".join(rng.choice(chosen)() for _ in range(rng.randint(1, 40)))


def byte_spelling():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelling = {b: chr(b) for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in spelling):
        spelling[b] = chr(256 + n)
    return spelling


def train_byte_level(lines, size, pre_tokenizer, special=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=list(special),
                                  show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_fields(tokenizer, **fields):
    """The tokenizer with fields of its model changed."""
    data = json.loads(tokenizer.to_str())
    data["model"].update(fields)
    return Tokenizer.from_str(json.dumps(data))


def ranks_of(tokenizer):
    """Ranks of bytes, for tiktoken: single bytes, then merges in their order."""
    data = json.loads(tokenizer.to_str())
    to_byte = {c: b for b, c in byte_spelling().items()}
    pieces = [c for c in byte_spelling().values()] + ["".join(m) for m in data["model"]["merges"]]
    ranks = {}
    for piece in pieces:
        ranks.setdefault(bytes(to_byte[c] for c in piece), len(ranks))
    return ranks


class Writer:
    def __init__(self, out, texts, seed):
        self.out, self.texts, self.seed = out, texts, seed
        (out / "texts.json").write_text(json.dumps(texts, ensure_ascii=True))

    def case(self, name, file, encode, decode, size, pattern=None, offsets=None, pairs=None, old=False):
        rng = random.Random(self.seed)
        ids = [None if old and not is_old(t) else encode(t) for t in self.texts]
        decoded = [None if i is None else decode(i) for i in ids]
        random_ids = [[rng.randrange(size) for _ in range(rng.randint(1, 12))] for _ in range(60)]
        case = {"file": file, "ids": ids, "decoded": [None if d == t else d for d, t in zip(decoded, self.texts)],
                "random_ids": random_ids, "random_decoded": [decode(i) for i in random_ids]}
        if pattern:
            case["pattern"] = pattern
        if offsets:
            case["offsets"] = [None if i is None else offsets(t) for i, t in zip(ids, self.texts)]
        if pairs:
            case["pairs"] = pairs
        (self.out / f"{name}.case.json").write_text(json.dumps(case, ensure_ascii=True, separators=(",", ":")))

    def hub(self, name, tokenizer, offsets=False, old=False):
        """A tokenizer.json and its case. Offsets become bytes."""
        tokenizer.save(str(self.out / f"{name}.json"), pretty=False)

        def places(text):
            at = [0]
            for c in text:
                at.append(at[-1] + len(c.encode()))
            return [[at[b], at[e]] for b, e in tokenizer.encode(text).offsets]
        few = [[a, b] for a, b in zip(self.texts[3:60:3], self.texts[4:61:3])]
        pairs = [{"texts": p, "ids": (e := tokenizer.encode(*p)).ids, "types": e.type_ids} for p in few]
        self.case(name, f"{name}.json", lambda t: tokenizer.encode(t).ids, lambda i: tokenizer.decode(i, skip_special_tokens=False),
                  tokenizer.get_vocab_size(), offsets=places if offsets else None, pairs=pairs, old=old)

    def tiktoken(self, name, ranks, pattern, pattern_name):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        (self.out / f"{name}.tiktoken").write_text("".join(f"{base64.b64encode(b).decode()} {r}\n" for b, r in ranks.items()))
        self.case(name,
                  f"{name}.tiktoken",
                  lambda t: encoding.encode(t, disallowed_special=()),
                  encoding.decode,
                  len(ranks),
                  pattern=pattern_name)


def byte_level(writer, lines):
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2 = train_byte_level(lines, 1200, byte, ["<|endoftext|>"])
    writer.hub("gpt2", gpt2)
    model = json.loads(gpt2.to_str())["model"]
    folder = writer.out / "gpt2_files"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=True))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]))
    writer.case("gpt2_files", "gpt2_files", lambda t: gpt2.encode(t).ids, lambda i: gpt2.decode(i, skip_special_tokens=False),
                gpt2.get_vocab_size())

    llama3 = with_fields(train_byte_level(lines, 1000, split_then_bytes(LLAMA3)), ignore_merges=True)
    llama3.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>"])
    bos = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", [("<|begin_of_text|>", bos)])
    ])
    writer.hub("llama3", llama3)
    qwen2 = train_byte_level(lines, 1000, split_then_bytes(QWEN2))
    qwen2.normalizer = normalizers.NFC()
    qwen2.add_special_tokens(["<|im_start|>", "<|endoftext|>"])
    qwen2.add_tokens([AddedToken("known", single_word=True), AddedToken("fox's", normalized=True)])
    writer.hub("qwen2", qwen2, offsets=False)
    writer.hub("tekken", train_byte_level(lines, 900, split_then_bytes(TEKKEN)))
    writer.hub("o200k_hub", train_byte_level(lines, 900, split_then_bytes(openai_public.o200k_base_pattern)))
    roberta = train_byte_level(lines, 900, pre_tokenizers.ByteLevel(add_prefix_space=True), ["<s>", "</s>", "<unk>", "<mask>"])
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=True)
    writer.hub("roberta", roberta)
    for name, patterns in {"tik_gpt2": (openai_public.r50k_pat_str, "gpt2"), "tik_cl100k": (openai_public.cl100k_pattern, "cl100k"),
                           "tik_o200k": (openai_public.o200k_base_pattern, "o200k")}.items():
        writer.tiktoken(name, ranks_of(gpt2), *patterns)


def words(writer, lines):
    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    bert.train_from_iterator(lines,
                             trainers.WordPieceTrainer(vocab_size=1000, special_tokens=special, show_progress=False, limit_alphabet=200))
    bert.decoder = decoders.WordPiece()
    bert.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    writer.hub("bert", bert, offsets=True, old=True)
    vocabulary = sorted(bert.get_vocab().items(), key=lambda e: e[1])
    (writer.out / "bert_vocab.txt").write_text("".join(piece + "\n" for piece, _ in vocabulary))
    writer.case("bert_vocab",
                "bert_vocab.txt",
                lambda t: bert.encode(t).ids,
                lambda i: bert.decode(i, skip_special_tokens=False),
                bert.get_vocab_size(),
                old=True)
    cased = Tokenizer.from_str(bert.to_str())
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    cased.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    writer.hub("bert_cased", cased, offsets=True, old=True)

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(
        lines[:8000] + HAND,
        trainers.UnigramTrainer(vocab_size=800, special_tokens=["<s>", "</s>", "<unk>", "<mask>"], unk_token="<unk>", show_progress=False))
    writer.hub("unigram", unigram, old=True)

    llama2 = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    llama2.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "),
         decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    llama2.train_from_iterator([w for line in lines for w in line.split()],
                               trainers.BpeTrainer(vocab_size=1000, special_tokens=special, limit_alphabet=150, show_progress=False))
    data = json.loads(llama2.to_str())
    data["added_tokens"] = data["added_tokens"][:3]  # The byte tokens are pieces of the model only.
    data["model"]["fuse_unk"] = data["model"]["byte_fallback"] = True
    writer.hub("llama2", Tokenizer.from_str(json.dumps(data)))

    clip = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    clip.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    clip.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    clip.decoder = decoders.BPEDecoder()
    clip.train_from_iterator(
        lines,
        trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=100, show_progress=False))
    writer.hub("suffix_bpe", clip, offsets=True, old=True)
    prefix = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    prefix.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
    prefix.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")])
    prefix.decoder = decoders.WordPiece()
    prefix.train_from_iterator(
        lines,
        trainers.BpeTrainer(vocab_size=700,
                            special_tokens=["<unk>"],
                            continuing_subword_prefix="##",
                            limit_alphabet=100,
                            show_progress=False))
    writer.hub("prefix_bpe", prefix, offsets=True, old=True)


def trained(writer):
    """What BpeTrainer learns from the texts themselves."""
    result = {}
    for name, pre_tokenizer in {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "llama3": split_then_bytes(LLAMA3)}.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizer
        trainer = trainers.BpeTrainer(vocab_size=700,
                                      min_frequency=2,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                      special_tokens=["<|endoftext|>"],
                                      show_progress=False)
        tokenizer.train_from_iterator(writer.texts, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        result[name] = {"vocabulary": 700, "vocab": model["vocab"], "merges": model["merges"]}
    (writer.out / "trained.json").write_text(json.dumps(result, ensure_ascii=True, separators=(",", ":")))


def components(writer):
    """Each component before a model that shows how it divides: one token a known character, with places."""
    alphabet = {c: i for i, c in enumerate(["<unk>", *[chr(c) for c in range(32, 127)], "\u2581", "\u0120", "\u010a", "\u00e9"])}
    pre = {
        "split_removed": pre_tokenizers.Split(Regex(r"[aeiou]+"),
                                              "removed"), "split_previous": pre_tokenizers.Split(" ", "merged_with_previous"),
        "split_next": pre_tokenizers.Split(Regex(r"\s"),
                                           "merged_with_next"), "split_contiguous": pre_tokenizers.Split(Regex(r"\p{P}"), "contiguous"),
        "split_invert": pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), "digits": pre_tokenizers.Digits(),
        "punctuation": pre_tokenizers.Punctuation("merged_with_next"), "delimiter": pre_tokenizers.CharDelimiterSplit("a"),
        "fixed": pre_tokenizers.FixedLength(3), "whitespace": pre_tokenizers.Whitespace(),
        "metaspace_first": pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        "metaspace_never": pre_tokenizers.Metaspace(prepend_scheme="never"), "bytes_spaced": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True),
             pre_tokenizers.ByteLevel(add_prefix_space=False)])
    }
    normal = {
        "nfkd": normalizers.NFKD(), "nfd": normalizers.NFD(), "nfc": normalizers.NFC(), "lower": normalizers.Lowercase(),
        "strip": normalizers.Strip(right=False), "bytes": normalizers.ByteLevel(), "replace": normalizers.Replace(Regex(r"[0-9]+"), "#"),
        "nmt": normalizers.Nmt()
    }
    cases = []
    words = [t for t in writer.texts if len(t) < 60 and is_old(t)][:110]
    for section, rows in (("pre_tokenizer", pre), ("normalizer", normal)):
        for name, component in rows.items():
            # A word is one token: what the component left shows in the places, and in which words are known.
            for model in (models.WordLevel(vocab=alphabet, unk_token="<unk>"), models.BPE(vocab=alphabet, merges=[], unk_token="<unk>")):
                tokenizer = Tokenizer(model)
                setattr(tokenizer, section, component)
                tokenizer.add_tokens([
                    AddedToken("\u00c9t", single_word=True, normalized=True),
                    AddedToken("<m>", lstrip=True, rstrip=True, normalized=False)
                ])
                rows_ = []
                for text in words:
                    at = [0]
                    for c in text:
                        at.append(at[-1] + len(c.encode()))
                    e = tokenizer.encode(text)
                    rows_.append([text, e.ids, [[at[b], at[e_]] for b, e_ in e.offsets]])
                cases.append({"name": f"{name}_{type(model).__name__}", "tokenizer": json.loads(tokenizer.to_str()), "rows": rows_})
    (writer.out / "components.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")))


def pieces(writer, lines):
    """SentencePiece models."""
    corpus = writer.out / "corpus.tmp"
    corpus.write_text("\n".join(line.replace("\n", " ") for line in lines[:8000] if line.strip()))
    for name, options in {
            "spm_unigram": {"model_type": "unigram", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
            "spm_bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    }.items():
        sentencepiece.SentencePieceTrainer.train(input=str(corpus),
                                                 model_prefix=str(writer.out / name),
                                                 vocab_size=800,
                                                 minloglevel=2,
                                                 character_coverage=0.98,
                                                 num_threads=1,
                                                 **options)
        (writer.out / f"{name}.vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(writer.out / f"{name}.model"))
        writer.case(name, f"{name}.model", processor.encode, processor.decode, processor.get_piece_size())
    corpus.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--strings", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    openai_public.o200k_base_pattern = patterns(openai_public.o200k_base)
    openai_public.cl100k_pattern = patterns(openai_public.cl100k_base)
    rng = random.Random(args.seed)
    lines = args.text.read_text().splitlines(keepends=True)
    args.out.mkdir(parents=True, exist_ok=True)
    texts = HAND + [random_text(rng) for _ in range(args.strings)] + ["".join(lines[i:i + 5]) for i in range(0, 200, 20)]
    writer = Writer(args.out, texts, args.seed)
    learned = lines[:8000] + [random_text(rng) for _ in range(2000)]
    byte_level(writer, learned)
    words(writer, learned)
    trained(writer)
    components(writer)
    pieces(writer, learned)
    (args.out / "versions.txt"
     ).write_text(f"tiktoken {tiktoken.__version__}\ntokenizers {tokenizers.__version__}\nsentencepiece {sentencepiece.__version__}\n")


def patterns(encoding):
    """The pattern of a published encoding, without fetching its ranks."""
    load, openai_public.load_tiktoken_bpe = openai_public.load_tiktoken_bpe, lambda *a, **k: {}
    try:
        return encoding()["pat_str"]
    finally:
        openai_public.load_tiktoken_bpe = load


if __name__ == "__main__":
    main()
