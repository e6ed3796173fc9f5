#include "libcore/data/frame_order.h"

#include <algorithm>
#include <cstddef>

namespace galley {
namespace {

/// Removes the digits at the front of a text, and returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

bool starts_with_digit(std::string_view text) { return !text.empty() && text.front() >= '0' && text.front() <= '9'; }

}  // namespace

bool FrameOrder::operator()(std::string_view a, std::string_view b) const {
  const std::string_view first = a, second = b;
  while (!a.empty() && !b.empty()) {
    if (starts_with_digit(a) && starts_with_digit(b)) {
      const std::string_view x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return first < second;
}

}  // namespace galley
