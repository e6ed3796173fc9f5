#include "libcore/data/tokenizers.h"

#include <array>
#include <set>
#include <utility>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/data/source.h"
#include "libcore/text/unicode.h"

namespace galley {
namespace {

/// Implements clone() and the option `path` of a tokenizer of files.
template <class Self>
struct FileTokenizerOf : FileTokenizer {
  explicit FileTokenizerOf(const char* type) { read.type = type; }
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }

 protected:
  void path_option(OptionVisitor& v, std::string_view doc) { v.option({.name = "path", .doc = doc}, path); }
};

struct HubTokenizer : FileTokenizerOf<HubTokenizer> {
  HubTokenizer() : FileTokenizerOf("auto") {}
  void options(OptionVisitor& v) override {
    path_option(v,
                "tokenizer.json, or a folder with the files of a tokenizer (tokenizer.json, *.tiktoken, vocab.json and merges.txt, "
                "tokenizer.model, vocab.txt); default: what the weights carry");
  }
};

struct BpeTokenizer : FileTokenizerOf<BpeTokenizer> {
  BpeTokenizer() : FileTokenizerOf("bpe") {}
  void options(OptionVisitor& v) override {
    path_option(v, "vocab.json (or encoder.json), or the folder that holds it; default: what the weights carry");
    v.option({.name = "merges", .doc = "The merges; default: merges.txt or vocab.bpe in the folder of the vocabulary"}, read.merges);
    v.option({.name = "pattern", .doc = "Pre-tokenization: gpt2, llama3, qwen2, cl100k, o200k or tekken; default: gpt2"}, read.pattern);
  }
};

struct WordPieceTokenizer : FileTokenizerOf<WordPieceTokenizer> {
  WordPieceTokenizer() : FileTokenizerOf("wordpiece") {}
  void options(OptionVisitor& v) override {
    path_option(v, "vocab.txt with one piece per line, or the folder that holds it; default: what the weights carry");
    v.option(
        {.name = "lowercase",
         .doc = "Convert to lower case and strip accents; do_lower_case of a tokenizer_config.json in the same folder takes precedence"},
        read.lowercase);
  }
};

struct SentencePieceTokenizer : FileTokenizerOf<SentencePieceTokenizer> {
  SentencePieceTokenizer() : FileTokenizerOf("sentencepiece") {}
  void options(OptionVisitor& v) override {
    path_option(v, "The .model file, or the folder that holds tokenizer.model; default: what the weights carry");
  }
};

struct TiktokenTokenizer : FileTokenizerOf<TiktokenTokenizer> {
  TiktokenTokenizer() : FileTokenizerOf("tiktoken") {}
  void options(OptionVisitor& v) override {
    path_option(v, "The .tiktoken file, or the folder that holds it; default: what the weights carry");
    v.option({.name = "pattern", .doc = "Pre-tokenization: gpt2, llama3, qwen2, cl100k, o200k or tekken; default: by the file's name"},
             read.pattern);
  }
};

struct VocabularyTokenizer : FileTokenizerOf<VocabularyTokenizer> {
  VocabularyTokenizer() : FileTokenizerOf("vocabulary") {}
  void options(OptionVisitor& v) override {
    path_option(v, "File with one word per line, in the order of their ids; default: what the weights carry");
    v.option({.name = "unknown", .doc = "The token of unknown words; empty: unknown words are errors"}, read.unknown);
  }
};

constexpr std::array<ComponentKind, 8> kKinds{{
    {"char", "one token per character of UTF-8 text", make_options<CharTokenizer>},
    {"byte", "one token per byte, 256 in total", make_options<ByteTokenizer>},
    {"bpe", "byte-level byte-pair encoding: vocab.json and merges.txt", make_options<BpeTokenizer>},
    {"wordpiece", "BERT's WordPiece: vocab.txt", make_options<WordPieceTokenizer>},
    {"sentencepiece", "a SentencePiece model", make_options<SentencePieceTokenizer>},
    {"tiktoken", "byte-level byte-pair encoding: a .tiktoken file", make_options<TiktokenTokenizer>},
    {"vocabulary", "one token per word between white space, from a list of words", make_options<VocabularyTokenizer>},
    {"hub", "a tokenizer.json, or a folder of files as model hubs have them", make_options<HubTokenizer>},
}};

}  // namespace

void CharTokenizer::options(OptionVisitor& visitor) {
  visitor.option(
      {.name = "path", .doc = "Text whose characters form the vocabulary; default: what the weights carry, else the training text"}, path);
}
void ByteTokenizer::options(OptionVisitor&) {}

std::shared_ptr<const text::Tokenizer> CharTokenizer::make(const TokenizerContext& context) const {
  const std::vector<std::string> files = path.empty() ? context.training_files() : expand_paths(context.root, path);
  GALLEY_CHECK(!files.empty(),
               "the tokenizer char takes its vocabulary from the training text, but data.train is not text; set data.tokenizer.path");
  std::set<uint32_t> characters;
  for (const std::string& file : files) {
    const std::string contents = read_file(file);
    text::check_utf8(contents, file);
    std::array<bool, 128> ascii{};
    for (const char *p = contents.data(), *end = p + contents.size(); p < end;) {
      const uint32_t c = text::next_char(p);
      if (c >= ascii.size() || !std::exchange(ascii[c], true)) characters.insert(c);
    }
  }
  GALLEY_CHECK_INPUT(!characters.empty(), files.front(), ": the text is empty, so the vocabulary has no characters");
  std::string all;
  for (const uint32_t c : characters) text::append_utf8(all, c);
  return text::character_tokenizer(all);
}
std::shared_ptr<const text::Tokenizer> ByteTokenizer::make(const TokenizerContext&) const { return text::byte_tokenizer(); }

std::shared_ptr<const text::Tokenizer> FileTokenizer::make(const TokenizerContext& context) const {
  GALLEY_CHECK(!path.empty(), "the tokenizer has no path, and there are no weights that carry one; set data.tokenizer.path");
  if (const std::string file = below_root(context.root, path); !file_exists(file))
    throw Error(ErrorCode::kInput, cat(file, ": no such file or folder: the tokenizer is read from it"))
        .key("data.tokenizer.path")
        .suggest(cat("galley-weights tokenizer train TEXT -o ", file, " learns one from a text"));
  text::ReadOptions options = read;
  if (!options.merges.empty()) options.merges = below_root(context.root, options.merges);
  return text::read_tokenizer(below_root(context.root, path), options);
}

ComponentKinds data_tokenizers() { return kKinds; }

std::string_view tokenizer_type(std::string_view saved) { return saved == "byte" ? "byte" : saved.starts_with("char ") ? "char" : "hub"; }

}  // namespace galley
