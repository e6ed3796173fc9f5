#pragma once
// Sources that are made of whole texts, which the pipeline item `pack` joins.

#include <cstdint>
#include <string>

#include "libcore/data/source.h"
#include "libcore/data/token_cache.h"

namespace galley {

/// A source whose samples are texts, or parts of them.
class TextDocuments : public Source {
 public:
  /// Number of texts; 0 if the samples are pairs.
  virtual int64_t documents() const = 0;
  /// The tokens of a text, nothing put around or cut off. Throws Error (kInput) if it cannot be encoded.
  virtual TokenList document(int64_t index) const = 0;
  /// Location of a text for messages.
  virtual std::string document_name(int64_t index) const { return sample_name(index); }
};

}  // namespace galley
