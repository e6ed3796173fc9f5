#include "libcore/comm/position.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {

void Position::set_text(std::string_view kind, std::string_view name) {
  version_.fetch_add(1, std::memory_order_acq_rel);
  size_t at = 0;
  const auto put = [&](std::string_view part) {
    for (const char c : part.substr(0, std::min(part.size(), kText - 1 - at))) text_[at++].store(c, std::memory_order_relaxed);
  };
  put(kind);
  if (!name.empty()) put(" ");
  put(name);
  text_[at].store('\0', std::memory_order_relaxed);
  version_.fetch_add(1, std::memory_order_release);
}

std::string Position::text() const {
  // A rank that was killed while it wrote leaves an odd version: after some tries the text is taken as it is.
  std::string text;
  for (int tries = 0; tries < 1000; ++tries) {
    const uint32_t before = version_.load(std::memory_order_acquire);
    text.clear();
    for (const std::atomic<char>& c : text_) {
      const char letter = c.load(std::memory_order_relaxed);
      if (letter == '\0') break;
      text += letter;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
  }
  return text;
}

std::string Position::str() const { return position_text(step, started, text()); }

std::string position_text(int64_t step, uint64_t collective, std::string_view text) {
  std::string where = step > 0 ? cat("in step ", step) : "before step 1";
  if (collective > 0) where += cat(", collective ", collective, " (", text, ")");
  return where;
}

}  // namespace galley
