#pragma once
// The tokenizer that tokenizer.json describes: added tokens, normalization, pre-tokenization, model, special tokens, and the way back.
// Other files (.tiktoken, vocab.json and merges.txt, vocab.txt) are read into the same parts.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/text/added_tokens.h"
#include "libcore/text/bpe.h"
#include "libcore/text/decoder.h"
#include "libcore/text/model.h"
#include "libcore/text/normalizer.h"
#include "libcore/text/post_processor.h"
#include "libcore/text/pre_tokenizer.h"
#include "libcore/text/tokenizer.h"

namespace galley::text {

/// Byte-level BPE after a known pattern: splits and merges the text in one pass over its bytes.
struct ByteLevelParts {
  std::unique_ptr<ByteBpe> bpe;
  const KnownPattern* pattern = nullptr;  ///< Null: the text is one piece.
};

struct Parts {
  std::string kind;  ///< "byte-level BPE", "WordPiece" ...
  Vocabulary vocabulary;
  std::vector<AddedToken> added;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  ByteLevelParts bytes;  ///< bpe set: pre_tokenizers and make_model are not used.
  /// Makes the model, which refers to the vocabulary at its final place.
  std::function<std::unique_ptr<Model>(const Vocabulary&)> make_model;
  PostProcessor post;
  std::vector<DecodeStep> decoders;
  bool bytes_decoder = false;  ///< The way back is by the bytes that pieces spell; decoders is then not used.
};

std::unique_ptr<Tokenizer> make_pipeline(Parts parts);

}  // namespace galley::text
