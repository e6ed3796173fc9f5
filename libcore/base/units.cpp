#include "libcore/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/base/trimmed.h"

namespace galley {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes a number from the front of `text` (sign, digits with single underscores between them, fraction, exponent) and returns it; nullopt
// if there is none. An `e` belongs to the number only if digits follow: "1epoch" is 1 and "epoch".
std::optional<double> take_number(std::string_view& text) {
  std::string digits;
  size_t i = 0;
  bool any = false;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
    if (text[i] == '-') digits += '-';
    ++i;
  }
  const auto take_digits = [&] {
    while (i < text.size()) {
      if (is_digit(text[i])) {
        digits += text[i++];
        any = true;
      } else if (text[i] == '_' && i > 0 && is_digit(text[i - 1]) && i + 1 < text.size() && is_digit(text[i + 1])) {
        ++i;
      } else {
        break;
      }
    }
  };
  take_digits();
  // "0..5" is a range, not the number "0." followed by ".5".
  if (i < text.size() && text[i] == '.' && !(i + 1 < text.size() && text[i + 1] == '.')) {
    digits += '.';
    ++i;
    take_digits();
  }
  if (!any) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    size_t j = i + 1;
    if (j < text.size() && (text[j] == '+' || text[j] == '-')) ++j;
    if (j < text.size() && is_digit(text[j])) {
      digits += 'e';
      if (text[i + 1] == '-') digits += '-';
      for (i = j; i < text.size() && is_digit(text[i]); ++i) digits += text[i];
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) {
    GALLEY_CHECK(false, "'", text.substr(0, i), "' is out of the range of a 64-bit floating-point number");
  }
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  text.remove_prefix(i);
  return value;
}

struct Scale {
  std::string_view name;
  double factor;
};

constexpr std::array<Scale, 24> kByteScales{
    {{"", 1},         {"B", 1},       {"byte", 1},    {"bytes", 1},    {"k", 1e3},     {"K", 1e3},      {"kB", 1e3},    {"KB", 1e3},
     {"M", 1e6},      {"MB", 1e6},    {"G", 1e9},     {"GB", 1e9},     {"T", 1e12},    {"TB", 1e12},    {"Ki", 0x1p10}, {"KiB", 0x1p10},
     {"kiB", 0x1p10}, {"ki", 0x1p10}, {"Mi", 0x1p20}, {"MiB", 0x1p20}, {"Gi", 0x1p30}, {"GiB", 0x1p30}, {"Ti", 0x1p40}, {"TiB", 0x1p40}}};

constexpr std::array<Scale, 19> kTimeScales{{{"us", 1e-6},
                                             {"ms", 1e-3},
                                             {"s", 1},
                                             {"sec", 1},
                                             {"second", 1},
                                             {"seconds", 1},
                                             {"m", 60},
                                             {"min", 60},
                                             {"mins", 60},
                                             {"minute", 60},
                                             {"minutes", 60},
                                             {"h", 3600},
                                             {"hr", 3600},
                                             {"hour", 3600},
                                             {"hours", 3600},
                                             {"d", 86400},
                                             {"day", 86400},
                                             {"days", 86400},
                                             {"w", 604800}}};

const Scale* find_scale(std::span<const Scale> scales, std::string_view name) {
  for (const Scale& scale : scales) {
    if (scale.name == name) return &scale;
  }
  return nullptr;
}

// Sum of numbers with time units ("1h30min"); nullopt if `text` has another form.
std::optional<double> take_seconds(std::string_view text) {
  double seconds = 0;
  text = trimmed(text);
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    const std::optional<double> value = take_number(text);
    if (!value || *value < 0) return std::nullopt;
    text = trimmed(text);
    size_t length = 0;
    while (length < text.size() && !is_digit(text[length]) && text[length] != ' ' && text[length] != '.') ++length;
    const Scale* scale = find_scale(kTimeScales, text.substr(0, length));
    if (!scale) return std::nullopt;
    seconds += *value * scale->factor;
    text = trimmed(text.substr(length));
  }
  return seconds;
}

// `value` with `digits` significant digits, without trailing zeros after the decimal point and without an exponent.
std::string significant(double value, int digits) {
  const int magnitude = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::abs(value))));
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", std::max(0, digits - 1 - magnitude), value);
  std::string text = buffer;
  if (text.find('.') != std::string::npos) {
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace

int64_t parse_count(std::string_view text) {
  std::string_view rest = trimmed(text);
  // Parse plain integers exactly; a double cannot represent all of int64.
  std::string digits;
  bool plain = !rest.empty();
  for (size_t i = 0; i < rest.size() && plain; ++i) {
    if (is_digit(rest[i]) || (i == 0 && rest[i] == '-')) {
      digits += rest[i];
    } else if (rest[i] == '_' && i > 0 && is_digit(rest[i - 1]) && i + 1 < rest.size()) {
      continue;
    } else if (!(i == 0 && rest[i] == '+')) {
      plain = false;
    }
  }
  if (plain && !digits.empty() && digits != "-") {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    GALLEY_CHECK(error != std::errc::result_out_of_range, "'", text, "' is out of the range of a 64-bit integer");
    if (error == std::errc() && end == digits.data() + digits.size()) return value;
  }
  if (rest.starts_with("0x") || rest.starts_with("0o")) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest.data() + 2, rest.data() + rest.size(), value, rest[1] == 'x' ? 16 : 8);
    if (error == std::errc() && end == rest.data() + rest.size() && rest[2] != '-') return value;
  }
  const std::optional<double> value = take_number(rest);
  GALLEY_CHECK(value && rest.empty(), "'", text, "' is not a whole number");
  GALLEY_CHECK(std::floor(*value) == *value, "'", text, "' is not a whole number");
  GALLEY_CHECK(std::abs(*value) <= 0x1p53, "'", text, "' is too large to be exact in this form: write all its digits");
  return static_cast<int64_t>(*value);
}

double parse_number(std::string_view text) {
  std::string_view rest = trimmed(text);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::string_view word : {".inf", ".Inf", ".INF", "+.inf", "inf"}) {
    if (rest == word) return infinity;
  }
  if (rest == "-.inf" || rest == "-.Inf" || rest == "-.INF" || rest == "-inf") return -infinity;
  if (rest == ".nan" || rest == ".NaN" || rest == ".NAN" || rest == "nan") return std::numeric_limits<double>::quiet_NaN();
  const std::optional<double> value = take_number(rest);
  GALLEY_CHECK(value && rest.empty(), "'", text, "' is not a number");
  return *value;
}

int64_t parse_bytes(std::string_view text) {
  std::string_view rest = trimmed(text);
  const std::optional<double> value = take_number(rest);
  const Scale* scale = value ? find_scale(kByteScales, trimmed(rest)) : nullptr;
  GALLEY_CHECK(scale, "'", text, "' is not a size: write e.g. 512MiB, 1GB or 4096");
  const double bytes = *value * scale->factor;
  GALLEY_CHECK(bytes >= 0 && bytes <= 0x1p62, "size '", text, "' is negative or too large");
  return static_cast<int64_t>(std::llround(bytes));
}

double parse_seconds(std::string_view text) {
  const std::optional<double> seconds = take_seconds(text);
  GALLEY_CHECK(seconds, "'", text, "' is not a time: write e.g. 90s, 20min or 1h30min");
  return *seconds;
}

std::string number_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  GALLEY_ASSERT(error == std::errc());
  return std::string(buffer, end);
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  char text[400];
  // Digits after the fifteenth say nothing: an exponent.
  std::snprintf(text, sizeof text, std::fabs(value) >= 1e15 ? "%.*e" : "%.*f", digits, value);
  return text;
}

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 6> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kNames.size()) {
    bytes /= 1024;
    ++unit;
  }
  return significant(bytes, unit == 0 ? 4 : 3 + (std::abs(bytes) >= 1000)) + " " + kNames[unit];
}

std::string human_count(int64_t count) {
  std::string digits = std::to_string(count);
  const int64_t first = count < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0) return "-" + human_seconds(-seconds);
  if (seconds < 999.5e-6) return significant(seconds * 1e6, 3) + " us";
  if (seconds < 0.9995) return significant(seconds * 1e3, 3) + " ms";
  if (seconds < 59.95) return significant(seconds, 3) + " s";
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return cat(whole / 60, "min", whole % 60 ? cat(" ", whole % 60, "s") : "");
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 24 * 60) return cat(minutes / 60, "h", minutes % 60 ? cat(" ", minutes % 60, "min") : "");
  const int64_t hours = std::llround(seconds / 3600);
  return cat(hours / 24, "d", hours % 24 ? cat(" ", hours % 24, "h") : "");
}

void Duration::parse(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, DurationUnit>, 9> kUnits{{{"epoch", DurationUnit::kEpochs},
                                                                                    {"epochs", DurationUnit::kEpochs},
                                                                                    {"step", DurationUnit::kSteps},
                                                                                    {"steps", DurationUnit::kSteps},
                                                                                    {"sample", DurationUnit::kSamples},
                                                                                    {"samples", DurationUnit::kSamples},
                                                                                    {"token", DurationUnit::kTokens},
                                                                                    {"tokens", DurationUnit::kTokens},
                                                                                    {"%", DurationUnit::kPercent}}};
  std::string_view rest = trimmed(text);
  const std::optional<double> number = take_number(rest);
  rest = trimmed(rest);
  GALLEY_CHECK(number, "'", text, "' is not a duration: write e.g. ", grammar());
  GALLEY_CHECK(!rest.empty(), "duration '", text, "' has no unit: write e.g. ", text, " epochs, ", text, " steps or ", text, "min");
  GALLEY_CHECK(*number >= 0 && std::isfinite(*number), "duration '", text, "' is negative");
  for (const auto& [name, kind] : kUnits) {
    if (rest != name) continue;
    const bool counted = kind == DurationUnit::kSteps || kind == DurationUnit::kSamples || kind == DurationUnit::kTokens;
    GALLEY_CHECK(!counted || (std::floor(*number) == *number && *number <= 0x1p53), "duration '", text, "' must be a whole number of ",
                 name);
    GALLEY_CHECK(kind != DurationUnit::kPercent || *number <= 100, "duration '", text, "' is more than 100%");
    value = *number;
    unit = kind;
    return;
  }
  const std::optional<double> seconds = take_seconds(text);
  GALLEY_CHECK(seconds, "duration '", text, "' has an unknown unit '", rest, "': write e.g. ", grammar());
  value = *seconds;
  unit = DurationUnit::kSeconds;
}

std::string Duration::str() const {
  const std::string number = number_text(value);
  const std::string plural = value == 1 ? "" : "s";
  switch (unit) {
    case DurationUnit::kEpochs: return number + " epoch" + plural;
    case DurationUnit::kSteps: return number + " step" + plural;
    case DurationUnit::kSamples: return number + " sample" + plural;
    case DurationUnit::kTokens: return number + " token" + plural;
    case DurationUnit::kPercent: return number + "%";
    case DurationUnit::kSeconds: break;
  }
  // The largest unit that gives a whole number, so that the text is exact.
  for (const auto& [name, factor] : {std::pair<const char*, double>{"h", 3600}, {"min", 60}}) {
    const double count = value / factor;
    if (value > 0 && std::floor(count) == count && count * factor == value) return number_text(count) + name;
  }
  return number + "s";
}

void Multiple::parse(std::string_view text) {
  std::string_view rest = trimmed(text);
  const std::optional<double> number = take_number(rest);
  rest = trimmed(rest);
  GALLEY_CHECK(number && (rest.empty() || rest == "x"), "'", text, "' is neither a number nor a multiple such as 0.01x");
  value = *number;
  relative = rest == "x";
}

std::string Multiple::str() const { return number_text(value) + (relative ? "x" : ""); }

std::string ByteSize::str() const {
  static constexpr std::array<std::pair<const char*, int64_t>, 4> kUnits{
      {{"TiB", int64_t{1} << 40}, {"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}}};
  for (const auto& [name, factor] : kUnits) {
    if (bytes > 0 && bytes % factor == 0) return cat(bytes / factor, name);
  }
  return std::to_string(bytes);
}

void Percentage::parse(std::string_view text) {
  std::string_view rest = trimmed(text);
  const std::optional<double> number = take_number(rest);
  GALLEY_CHECK(number && trimmed(rest) == "%", "'", text, "' is not a percentage: write e.g. 95%");
  GALLEY_CHECK(*number >= 0 && *number <= 100, "percentage '", text, "' must be between 0% and 100%");
  percent = *number;
}

void Slice::parse(std::string_view text) {
  std::string_view rest = trimmed(text);
  const size_t dots = rest.find("..");
  GALLEY_CHECK(dots != std::string_view::npos, "'", text, "' is not a slice: write e.g. ", grammar());
  const auto bound = [&](std::string_view part, Bound absent) {
    part = trimmed(part);
    if (part.empty()) return absent;
    const std::optional<double> number = take_number(part);
    part = trimmed(part);
    GALLEY_CHECK(number && (part.empty() || part == "%"), "'", text, "' is not a slice: write e.g. ", grammar());
    const bool percent = part == "%";
    GALLEY_CHECK(*number >= 0 && (!percent || *number <= 100), "slice '", text, "' is outside 0%..100%");
    GALLEY_CHECK(percent || std::floor(*number) == *number, "slice '", text, "' must have whole numbers or percentages");
    return Bound{*number, percent};
  };
  const Bound low = bound(rest.substr(0, dots), {0, true}), high = bound(rest.substr(dots + 2), {100, true});
  GALLEY_CHECK(low.percent != high.percent || low.value < high.value, "slice '", text, "' is empty");
  begin = low;
  end = high;
}

std::string Slice::str() const {
  const auto bound = [](const Bound& b) { return number_text(b.value) + (b.percent ? "%" : ""); };
  return bound(begin) + ".." + bound(end);
}

std::pair<int64_t, int64_t> Slice::of(int64_t size) const {
  const auto at = [&](const Bound& b) {
    if (b.percent) return static_cast<int64_t>(std::llround(static_cast<double>(size) * b.value / 100.0));
    GALLEY_CHECK(b.value <= static_cast<double>(size), "slice ", str(), " exceeds the ", size, " samples of the source");
    return static_cast<int64_t>(b.value);
  };
  const int64_t first = at(begin), last = at(end);
  GALLEY_CHECK(first < last, "slice ", str(), " of ", size, " samples is empty");
  return {first, last};
}

void AutoCount::parse(std::string_view text) {
  if (trimmed(text) == "auto") {
    count.reset();
    return;
  }
  std::string_view rest = trimmed(text);
  GALLEY_CHECK(!rest.empty() && (is_digit(rest.front()) || rest.front() == '-'), "'", text, "' is neither auto nor a whole number");
  const int64_t value = parse_count(text);
  GALLEY_CHECK(value >= 0, "'", text, "' is negative");
  count = value;
}

}  // namespace galley
