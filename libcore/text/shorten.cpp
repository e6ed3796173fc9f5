#include "libcore/text/shorten.h"

#include <algorithm>

namespace galley::text {

void shorten(std::vector<Token>& tokens, size_t first_count, size_t longest) {
  std::vector<size_t> first, second;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].begin < tokens[i].end) (first.size() < first_count ? first : second).push_back(i);
  }
  std::vector<bool> dropped(tokens.size());
  for (size_t count = tokens.size(); count > longest && !(first.empty() && second.empty()); --count) {
    std::vector<size_t>& from = first.size() > second.size() ? first : second;
    dropped[from.back()] = true;
    from.pop_back();
  }
  size_t to = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!dropped[i]) tokens[to++] = tokens[i];
  }
  tokens.resize(std::min(to, longest));
}

}  // namespace galley::text
