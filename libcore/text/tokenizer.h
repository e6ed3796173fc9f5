#pragma once
// Tokenizers: between text and the integers that a language model reads. One interface for byte-level BPE, WordPiece, Unigram,
// SentencePiece, characters, bytes and word lists; read_tokenizer makes one from a file or a folder. All functions are const and may be
// called by several threads at once; the result does not depend on earlier calls.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/vocabulary.h"

namespace galley::text {

struct Definition;

/// A token and the bytes [begin, end) of the input that it stands for. Tokens that a template adds (add_special) have begin = end.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  int32_t type = 0;  ///< Which text of a pair: token_type_ids of BERT.
};

struct EncodeOptions {
  /// Adds what the tokenizer puts around a text: [CLS] and [SEP], a token for the beginning.
  bool add_special = true;
  /// Special tokens that the text spells out ("<|endoftext|>") become their ids; false: they are ordinary text.
  bool parse_special = true;
  /// What the text is called in messages, e.g. the path of its file.
  std::string_view name = "text";
};

/// Turns ids into text as they come. What push returned never ends within a UTF-8 character: bytes of an unfinished one are held until it
/// is complete. Bytes that can never become valid are U+FFFD at once.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  /// The text that is final after this token. Throws (kInput) if the id is not in the vocabulary.
  virtual std::string push(int32_t id) = 0;
  /// The rest, at the end of the text; the decoder then starts again.
  virtual std::string finish() = 0;
  /// A decoder in the same state, for the same tokenizer.
  virtual std::unique_ptr<StreamDecoder> clone() const = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// One more than the largest id. Smaller ids may be without a token (has).
  int64_t size() const { return vocabulary_.size(); }
  bool has(int64_t id) const { return vocabulary_.has(id); }
  /// The piece of an id as its file spells it ("Ġthe", "##ing", "▁a"). Throws (kInput) if there is none.
  const std::string& piece(int64_t id) const { return vocabulary_.piece(id); }
  std::optional<int32_t> id(std::string_view piece) const { return vocabulary_.find(piece); }
  /// In the order of their ids.
  const std::vector<int32_t>& special_tokens() const { return special_; }
  bool is_special(int64_t id) const;

  /// Appends the ids of a text. Throws (kInput) "NAME:LINE:COLUMN: ..." if the text is not valid UTF-8 or, for tokenizers without a token
  /// for the unknown, contains what the vocabulary does not.
  void encode(std::string_view text, std::vector<int32_t>& ids, const EncodeOptions& options = {}) const;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The same ids with their places in the text.
  std::vector<Token> tokens(std::string_view text, const EncodeOptions& options = {}) const;
  /// Two texts in one sequence, with the special tokens that belong around and between them. Places count in the token's own text; tokens
  /// of the second text follow those of the first.
  virtual std::vector<Token> pair(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;

  /// The text of ids; bytes that are not UTF-8 are U+FFFD. Throws (kInput) for an id that is not in the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  virtual std::unique_ptr<StreamDecoder> stream(bool skip_special = false) const;

  /// The bytes that a token adds to a text in whose middle it stands; they may be a part of a character. Throws (kInput) as piece does.
  virtual std::string bytes(int32_t id) const;

  /// What it is, in a line: "byte-level BPE, 50257 tokens, pattern gpt2".
  virtual std::string str() const = 0;
  /// A text from which load_tokenizer makes the same tokenizer without any file, for weight files: "byte", "char ABC...", or JSON with the
  /// contents of the files.
  virtual std::string saved() const;

 protected:
  Tokenizer() = default;
  /// Text that is valid UTF-8, or any bytes where takes_bytes().
  virtual void encode_valid(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const = 0;
  virtual std::vector<Token> tokens_of_valid(std::string_view text, const EncodeOptions& options) const = 0;
  virtual bool takes_bytes() const { return false; }
  void mark_special(int32_t id);

  Vocabulary vocabulary_;
  std::vector<int32_t> special_;

 private:
  friend std::unique_ptr<Tokenizer> make_tokenizer(Definition definition);
  std::shared_ptr<const Definition> definition_;  // Of what it was made; null for bytes and characters.
};

/// How files are to be read that do not say it themselves.
struct ReadOptions {
  /// auto | tokenizer_json | bpe | tiktoken | wordpiece | sentencepiece | vocabulary. auto: by the names in a folder, and by the name of a
  /// file.
  std::string type = "auto";
  /// bpe: the file of merges. Empty: merges.txt or vocab.bpe in the folder of the vocabulary.
  std::string merges;
  /// .tiktoken files and merges: the name of a pre-tokenization (pattern_names). Empty: by the file's name.
  std::string pattern;
  /// vocab.txt of WordPiece: lower case and no accents. A tokenizer_config.json in the same folder takes precedence (do_lower_case).
  bool lowercase = true;
  /// vocabulary: the token that stands for words that are not in the list; empty: they are errors.
  std::string unknown = "<unk>";
};

/// Reads a tokenizer. `path` is a file, or a folder; of bpe the vocabulary or the merges. Of a folder it takes tokenizer.json, else
/// *.tiktoken, vocab.json and merges.txt (encoder.json and vocab.bpe), a SentencePiece model (tokenizer.model, spiece.model,
/// sentencepiece.bpe.model), vocab.txt: the first that is there. Throws (kInput), with the file and the place in it, if a file is missing,
/// damaged or contradicts itself, or uses a component that is not implemented, which the message names.
std::unique_ptr<const Tokenizer> read_tokenizer(const std::string& path, const ReadOptions& options = {});

/// The tokenizer of a text that Tokenizer::saved wrote, also in earlier versions. Throws (kInput), naming `place`, for any other text.
std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view saved, const std::string& place);

/// One token per byte, 256 in total; any bytes are valid.
std::unique_ptr<const Tokenizer> byte_tokenizer();
/// One token per character, in the order of their code points; `characters` is valid UTF-8 with each character once.
std::unique_ptr<const Tokenizer> character_tokenizer(std::string_view characters);
/// One token per word between white space: ids are positions in `words`. `unknown` is one of them, or "" (other words are errors).
std::unique_ptr<const Tokenizer> word_tokenizer(const std::vector<std::string>& words, const std::string& unknown);

}  // namespace galley::text
