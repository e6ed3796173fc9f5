#pragma once
// The special tokens around one text, or around and between two.

#include <cstdint>
#include <vector>

namespace galley::text {

struct TemplateItem {
  enum Kind { kFirst, kSecond, kTokens } kind = kFirst;
  std::vector<int32_t> ids;  ///< kTokens
  int32_t type = 0;
};

struct PostProcessor {
  std::vector<TemplateItem> single{{TemplateItem::kFirst, {}, 0}};
  std::vector<TemplateItem> pair{{TemplateItem::kFirst, {}, 0}, {TemplateItem::kSecond, {}, 1}};
};

}  // namespace galley::text
