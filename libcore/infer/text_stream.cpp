#include "libcore/infer/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "libcore/base/error.h"

namespace galley {
namespace {

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

int32_t id_of(int64_t token) {
  GALLEY_CHECK_INPUT(std::in_range<int32_t>(token), "token ", token, " is out of range");
  return static_cast<int32_t>(token);
}

}  // namespace

TextStream::TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops)
    : decoder_(tokenizer.stream(/*skip_special=*/true)), stops_(std::move(stops)) {}

TextStream::TextStream(const TextStream& other)
    : decoder_(other.decoder_->clone()), stops_(other.stops_), text_(other.text_), stopped_(other.stopped_) {}

TextStream& TextStream::operator=(const TextStream& other) { return *this = TextStream(other); }

void TextStream::follow(std::span<const int64_t> tokens) {
  for (const int64_t token : tokens) decoder_->push(id_of(token));
}

std::string TextStream::push(int64_t token) { return stopped_ ? "" : pass(decoder_->push(id_of(token))); }

std::string TextStream::pass(const std::string& text) {
  text_ += text;
  size_t stop = std::string::npos, held = 0;
  for (const std::string& end : stops_) {
    stop = std::min(stop, text_.find(end));
    held = std::max(held, overlap(text_, end));
  }
  stopped_ = stop != std::string::npos;
  std::string ready = text_.substr(0, stopped_ ? stop : text_.size() - held);
  text_.erase(0, stopped_ ? text_.size() : ready.size());
  return ready;
}

std::string TextStream::finish() {
  if (stopped_) return "";
  std::string rest = pass(decoder_->finish());
  return rest + std::exchange(text_, {});
}

}  // namespace galley
