#pragma once
// Decoders in ONNX files: models of the next token whose inputs and outputs have the names of transformers and optimum, with or without
// the keys and values of earlier tokens.

#include <optional>
#include <string>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// The keys and values of earlier tokens in one layer, each [N,heads,P,width].
struct PastLayer {
  std::string name;        // "past_key_values.0", with the inputs NAME.key and NAME.value
  std::string key, value;  // the inputs
  std::string made[2];     // the outputs present.0.key and present.0.value [N,heads,P+T,width]
  int64_t heads = 0, width = 0;
};

/// A decoder's inputs and outputs by their names in the file; "" for absent ones.
struct DecoderFile {
  std::string tokens, mask, positions;  // input_ids [N,T], attention_mask [N,P+T], position_ids [N,T]
  DType tokens_type = DType::kI64, mask_type = DType::kI64, positions_type = DType::kI64;
  std::string logits;  // [N,T,vocabulary]
  std::vector<PastLayer> past;
  int64_t context = 0;      // rows of the table of positions; 0: unknown
  bool table_mask = false;  // the mask is a part of a table [1,1,context,context], which has no rows for masked places (GPT-Neo)

  /// Whether sequences can be continued: positions must be an input, because earlier tokens have places that do not tell them.
  bool continues() const { return !past.empty() && !positions.empty() && !table_mask; }
};

/// The decoder in the file, if its inputs and outputs are those of one. Throws Error (kInput) for keys and values of unknown shape.
std::optional<DecoderFile> find_decoder(const Source& source);

/// Captures it for tokens [N,T]: logits [N,T,vocabulary], or of a program with a cache (nn/attention.h) [N,vocabulary].
///
/// Without a cache there are no earlier tokens. With one, each sequence's earlier tokens are the last of the places for them, and the ones
/// before are masked; so new tokens are as far from them as in a sequence without padding. In the open form the inputs are the file's.
NamedValues capture_decoder(Builder& b, const std::shared_ptr<const Source>& source, const DecoderFile& decoder, Value tokens);

}  // namespace galley::onnx_import
