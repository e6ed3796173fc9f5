#include "libcore/text/windows.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley::text {

std::vector<ContextWindow> context_windows(const Tokenizer& tokenizer, std::string_view question, std::string_view context, size_t longest,
                                           size_t shared, std::string_view name) {
  const std::vector<Token> all = tokenizer.pair(question, context, {.name = name});
  // Tokens of the template are empty; those of the question come first.
  const size_t questions = tokenizer.encode(question, {.add_special = false, .name = name}).size();
  size_t first = all.size(), last = 0, seen = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].begin == all[i].end || ++seen <= questions) continue;
    first = std::min(first, i);
    last = i + 1;
  }
  GALLEY_CHECK_INPUT(last > 0, name, ": the context has no tokens");
  const size_t rest = all.size() - (last - first);
  GALLEY_CHECK_INPUT(rest < longest, name, ": the question has ", questions,
                     " tokens, which leaves no room for the context: a sequence has at most ", longest, " tokens");
  const size_t room = longest - rest, step = room - std::min(shared, room / 2);
  std::vector<ContextWindow> windows;
  for (size_t begin = first;; begin += step) {
    const size_t end = std::min(last, begin + room);
    ContextWindow& window = windows.emplace_back();
    window.first = first;
    window.count = end - begin;
    window.tokens.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
    window.tokens.insert(window.tokens.end(), all.begin() + static_cast<std::ptrdiff_t>(begin),
                         all.begin() + static_cast<std::ptrdiff_t>(end));
    window.tokens.insert(window.tokens.end(), all.begin() + static_cast<std::ptrdiff_t>(last), all.end());
    if (end == last) return windows;
  }
}

}  // namespace galley::text
