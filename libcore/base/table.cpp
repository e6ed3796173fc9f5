#include "libcore/base/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace galley {

std::string human_number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(value);
  char text[64];
  // Neither many digits that mean nothing nor zeros alone: an exponent.
  if (magnitude >= 1e15 || (magnitude < 1e-5 && magnitude > 0)) {
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
  }
  if (magnitude >= 1000) {
    std::snprintf(text, sizeof text, "%.0f", value);
    std::string digits = text;
    for (int i = static_cast<int>(digits.size()) - 3; i > (digits[0] == '-' ? 1 : 0); i -= 3) digits.insert(static_cast<size_t>(i), ",");
    return digits;
  }
  const int decimals = magnitude == 0 ? 0 : std::clamp(3 - static_cast<int>(std::floor(std::log10(magnitude))), 0, 8);
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace galley
