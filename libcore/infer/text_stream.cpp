#include "libcore/infer/text_stream.h"

#include <algorithm>
#include <cstdint>

namespace galley {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the character at the start of `bytes`: 1 to 4; 0 if more bytes are needed; -n if the first n bytes are not a character
/// (the longest prefix of one, as Unicode 15, section 3.9, recommends).
int character_length(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const int length = first >= 0xC2 && first <= 0xDF ? 2 : (first & 0xF0) == 0xE0 ? 3 : first >= 0xF0 && first <= 0xF4 ? 4 : 0;
  if (length == 0) return -1;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= bytes.size()) return 0;
    uint8_t low = 0x80, high = 0xBF;  // limits of the second byte exclude overlong forms, surrogates and code points above U+10FFFF
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (at(static_cast<size_t>(i)) < low || at(static_cast<size_t>(i)) > high) return -i;
  }
  return length;
}

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return "";
  bytes_ += bytes;
  size_t used = 0;
  while (used < bytes_.size()) {
    const int length = character_length(std::string_view(bytes_).substr(used));
    if (length == 0) break;
    if (length > 0) {
      text_ += bytes_.substr(used, static_cast<size_t>(length));
    } else {
      text_ += kReplacement;
    }
    used += static_cast<size_t>(std::abs(length));
  }
  bytes_.erase(0, used);

  size_t stop = std::string::npos, held = 0;
  for (const std::string& text : stops_) {
    stop = std::min(stop, text_.find(text));
    held = std::max(held, overlap(text_, text));
  }
  stopped_ = stop != std::string::npos;
  std::string ready = text_.substr(0, stopped_ ? stop : text_.size() - held);
  text_.erase(0, stopped_ ? text_.size() : ready.size());
  return ready;
}

std::string TextStream::finish() {
  if (stopped_) return "";
  std::string rest = std::move(text_);
  if (!bytes_.empty()) rest += kReplacement;
  text_.clear();
  bytes_.clear();
  return rest;
}

}  // namespace galley
