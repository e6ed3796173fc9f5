#include "libcore/text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

size_t previous_char(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}
uint8_t class_at(std::string_view text, size_t at) {
  const char* p = text.data() + at;
  return ClassTable::get()[next_char(p)];
}
bool within_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && (class_at(text, previous_char(text, begin)) & kWord)) || (end < text.size() && (class_at(text, end) & kWord));
}

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view spelling) {
  if (spelling.empty()) return;
  int32_t& place = spellings_.at(spelling);
  if (place == ByteTrie::kNone) place = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  only_first_ = static_cast<uint8_t>(spelling[0]);
  first_count_ += !first_[only_first_];
  first_[only_first_] = true;
}

int32_t AddedTokens::match(std::string_view text, size_t at, size_t& end) const {
  int32_t longest = ByteTrie::kNone;
  spellings_.visit_at(text, at, [&](size_t after, int32_t token) {
    longest = token;
    end = after;
  });
  return longest;
}

std::vector<AddedTokens::Part> AddedTokens::divide(std::string_view text, bool parse_special) const {
  std::vector<Part> parts;
  const auto put = [&](size_t begin, size_t end, const AddedToken* token) {
    if (begin < end) parts.push_back({{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, token});
  };
  size_t rest = 0;
  for (size_t at = 0; at < text.size();) {
    if (tokens_.empty()) break;
    if (first_count_ == 1) {
      const void* found = std::memchr(text.data() + at, only_first_, text.size() - at);
      if (!found) break;
      at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    } else if (!first_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    size_t end = 0;
    const int32_t index = match(text, at, end);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    at = end;  // A match that is refused is passed over as a whole.
    if ((token.special && !parse_special) || (token.single_word && within_word(text, begin, end))) continue;
    while (token.lstrip && begin > rest && (class_at(text, previous_char(text, begin)) & kSpace)) begin = previous_char(text, begin);
    while (token.rstrip && end < text.size() && (class_at(text, end) & kSpace)) end += char_length(text.data() + end);
    put(rest, begin, nullptr);
    put(begin, end, &token);
    rest = end;
    at = std::max(at, end);
  }
  put(rest, text.size(), nullptr);
  return parts;
}

}  // namespace galley::text
