#pragma once
// Characters and bytes of text that tokens stand for, by which metrics of tokens become those of text.

#include <cstdint>
#include <vector>

#include "libcore/text/tokenizer.h"

namespace galley {

struct TextSize {
  int32_t characters = 0, bytes = 0;
};

/// The size of each token, by id; 0 for ids without a token. A character counts where its first byte is.
inline std::vector<TextSize> text_sizes(const text::Tokenizer& tokenizer) {
  std::vector<TextSize> sizes(static_cast<size_t>(tokenizer.size()));
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    if (!tokenizer.has(id)) continue;
    TextSize& size = sizes[static_cast<size_t>(id)];
    for (const char c : tokenizer.bytes(id)) {
      size.characters += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
      ++size.bytes;
    }
  }
  return sizes;
}

}  // namespace galley
