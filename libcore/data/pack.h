#pragma once
// Pack: joins whole texts to one sequence of tokens and cuts it into blocks of one length, for language models.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/data/source.h"
#include "libcore/data/transform.h"

namespace galley {

/// The first item of a pipeline: its samples are not those of the source but blocks of its texts (data/documents.h), in the order of the
/// source. Block i has the `length` tokens from token i * stride on as `input` [length], the tokens one position later as `label` [length],
/// and their text_size [length,2] (source `text`). Every token except the first of all is a label exactly once in an epoch: with a stride
/// below `length`, the first labels of a block are kNoLabel, since the block before has them. After the last token, inputs are token 0 and
/// labels kNoLabel. Blocks are samples: the position of a loader counts them.
///
/// With `separate`, the field position_ids [length] counts tokens from 0 in each document, and models that take it attend within documents
/// (nn/attention.h). A document ends with the end token, even if the text itself contains it. The first token of a document is then not a
/// label.
struct Pack : Transform {
  static constexpr int64_t kNoLabel = -100;  ///< The default of cross_entropy's ignore_index.
  std::optional<int64_t> length, stride;
  std::string end = "auto";
  bool separate = false;
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< Set by with_tokenizer; not an option.
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Pack>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in) const override;
  void apply_to_sample(Sample&, RandomStream&) const override {}

  /// The blocks of a source's texts. `usual` is the default of `length`; 0: none. Throws Error (kRecipe) if the source has no texts, or the
  /// tokenizer no end token; (kInput) if there are fewer than two tokens.
  std::shared_ptr<const Source> blocks(std::shared_ptr<const Source> source, int64_t usual) const;
};

/// The item `pack` of a pipeline; null if there is none. Throws Error (kRecipe, with the key PREFIX.N) if it is not the first item.
const Pack* find_pack(const std::vector<Component>& items, std::string_view prefix);

}  // namespace galley
