#pragma once
// Values with units as written in recipes, and numbers formatted for people: durations, sizes, times, counts, percentages, multiples,
// slices, `auto`. The space between a number and its unit is optional. Every parser throws galley::Error (exit code 3, without a position)
// if the text is not valid.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "libcore/base/options.h"

namespace galley {

/// A whole number: 1000, 1_000_000, 1e6. Throws Error if it is not whole or exceeds int64.
int64_t parse_count(std::string_view text);
/// A number of YAML 1.2's core schema (1e-4, .5, .inf, .nan); underscores between digits are allowed.
double parse_number(std::string_view text);
/// Bytes: 512MiB, 1.5 GB, 100 (bytes). k, M, G, T are powers of 1000; Ki, Mi, Gi, Ti are powers of 1024; the B is optional.
int64_t parse_bytes(std::string_view text);
/// Seconds: 90s, 20min, 1.5h, 2d, 1h30min. A bare number is an error.
double parse_seconds(std::string_view text);

/// The shortest text that parse_number reads back to the same value.
std::string number_text(double value);
/// "512 B", "1.46 GiB": at most four significant digits.
std::string human_bytes(double bytes);
/// "12.30": `digits` digits after the decimal point; "nan", "inf" or "-inf" if not finite.
std::string fixed(double value, int digits);
/// "1,234,567"
std::string human_count(int64_t count);
/// "850 us", "12.3 ms", "4.21 s", "3min 20s", "2h 14min", "3d 4h"
std::string human_seconds(double seconds);

enum class DurationUnit { kEpochs, kSteps, kSamples, kTokens, kSeconds, kPercent };

/// A length or an interval of training: "90 epochs", "500 steps", "1e6 samples", "1e9 tokens", "20min", "10%" (of the run). A number
/// without a unit is an error, because other tools read it as epochs, steps or seconds.
struct Duration : TextValue {
  Duration() = default;
  Duration(double v, DurationUnit u) : value(v), unit(u) {}
  void parse(std::string_view text) override;
  std::string str() const override;
  std::string_view grammar() const override { return "90 epochs, 500 steps, 1e6 samples, 1e9 tokens, 20min, 10%"; }
  bool operator==(const Duration& other) const { return value == other.value && unit == other.unit; }

  double value = 0;  ///< In `unit`: epochs may be fractional; seconds for times; 0..100 for percent.
  DurationUnit unit = DurationUnit::kEpochs;
};

/// "0.01x": a multiple of a base value; "0.1": the value itself.
struct Multiple : TextValue {
  Multiple() = default;
  Multiple(double v, bool times) : value(v), relative(times) {}
  void parse(std::string_view text) override;
  std::string str() const override;
  std::string_view grammar() const override { return "0.01x (times the base value), or 0.1"; }
  double of(double base) const { return relative ? value * base : value; }

  double value = 1;
  bool relative = true;
};

/// Bytes, e.g. 25MiB.
struct ByteSize : TextValue {
  ByteSize() = default;
  explicit ByteSize(int64_t b) : bytes(b) {}
  void parse(std::string_view text) override { bytes = parse_bytes(text); }
  std::string str() const override;  ///< The largest binary unit that divides it: "25MiB".
  std::string_view grammar() const override { return "512MiB, 1GB, 4096"; }

  int64_t bytes = 0;
};

/// "95%"
struct Percentage : TextValue {
  Percentage() = default;
  explicit Percentage(double p) : percent(p) {}
  void parse(std::string_view text) override;
  std::string str() const override { return number_text(percent) + "%"; }
  std::string_view grammar() const override { return "95%"; }

  double percent = 0;
};

/// Part of a sequence: "0%..100%", "0..5000", "90%..", "..1000". The begin is included, the end is not.
struct Slice : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override;
  std::string_view grammar() const override { return "0%..80% or 0..5000 (begin included, end not)"; }
  /// First index and end (exclusive) for a sequence of `size`; throws Error if a count exceeds `size` or the slice is empty.
  std::pair<int64_t, int64_t> of(int64_t size) const;

  struct Bound {
    double value = 0;
    bool percent = true;
  };
  Bound begin{0, true};
  Bound end{100, true};
};

/// "auto" or a count of at least 0 (threads, workers, micro-batches).
struct AutoCount : TextValue {
  AutoCount() = default;
  explicit AutoCount(int64_t n) : count(n) {}
  void parse(std::string_view text) override;
  std::string str() const override { return count ? std::to_string(*count) : "auto"; }
  std::string_view grammar() const override { return "auto, or a whole number"; }
  int64_t value_or(int64_t fallback) const { return count.value_or(fallback); }

  std::optional<int64_t> count;  ///< Empty: auto.
};

}  // namespace galley
