#include "libcore/text/buffer.h"

#include "libcore/text/unicode.h"

namespace galley::text {

Buffer::Buffer(std::string_view text, uint32_t base, bool tracked) : text_(text), tracked_(tracked) {
  if (!tracked) return;
  origins_.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto n = static_cast<uint32_t>(char_length(text.data() + at));
    const uint32_t begin = base + static_cast<uint32_t>(at);
    origins_.insert(origins_.end(), n, {begin, begin + n});
    at += n;
  }
}

Range Buffer::origin(size_t begin, size_t end) const {
  if (!tracked_) return {};
  if (begin < end) return {origins_[begin].begin, origins_[end - 1].end};
  const uint32_t at = begin < origins_.size() ? origins_[begin].begin : origins_.empty() ? 0 : origins_.back().end;
  return {at, at};
}

void Buffer::Writer::emit(std::string_view text, size_t begin, size_t end) {
  text_.append(text);
  if (!from_.tracked_) return;
  if (text == std::string_view(from_.text_).substr(begin, end - begin)) {
    origins_.insert(origins_.end(), from_.origins_.begin() + static_cast<std::ptrdiff_t>(begin),
                    from_.origins_.begin() + static_cast<std::ptrdiff_t>(end));
  } else {
    origins_.insert(origins_.end(), text.size(), from_.origin(begin, end));
  }
}

void Buffer::Writer::emit_char(uint32_t c, size_t begin, size_t end) {
  std::string text;
  append_utf8(text, c);
  emit(text, begin, end);
}

void Buffer::rewrite(const std::function<void(Writer&)>& rewrite) {
  Writer writer(*this);
  writer.text_.reserve(text_.size());
  rewrite(writer);
  text_ = std::move(writer.text_);
  origins_ = std::move(writer.origins_);
}

void Buffer::map(const std::function<void(uint32_t, std::string&)>& map) {
  rewrite([&](Writer& writer) {
    std::string out;
    const char* begin = text_.data();
    for (const char* p = begin; p < begin + text_.size();) {
      const auto at = static_cast<size_t>(p - begin);
      out.clear();
      map(next_char(p), out);
      writer.emit(out, at, static_cast<size_t>(p - begin));
    }
  });
}

}  // namespace galley::text
