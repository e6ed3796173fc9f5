#pragma once
// Lengths of the programs for sequences: each is compiled once, so there are few.

#include <algorithm>
#include <cstdint>

namespace galley {

/// The length of the program for sequences of `tokens`: a power of two of at least 16, or `most` where that is less.
inline int64_t program_length(int64_t tokens, int64_t most) {
  int64_t length = 16;
  while (length < tokens) length *= 2;
  return std::min(length, most);
}

}  // namespace galley
