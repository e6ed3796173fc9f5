#include "libcore/recipe/benchmark_cells.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

constexpr int64_t kMostValues = 1000;
constexpr std::array<std::string_view, 6> kKinds{"forward", "train_step", "decode", "prefill", "data", "load"};

std::vector<std::string> expand(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  for (const std::string& text : texts) {
    for (std::string& value : expand_range(text)) values.push_back(std::move(value));
  }
  return values;
}

bool listed(const std::vector<std::string>& texts, const std::string& value) {
  if (texts.empty()) return true;
  const std::vector<std::string> values = expand(texts);
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string value_of(const BenchmarkCell& cell, const std::string& key) {
  for (const auto& [name, value] : cell.set) {
    if (name == key) return value;
  }
  return "";
}

bool excluded(const BenchmarkSection& section, const BenchmarkCell& cell) {
  for (size_t i = 0; i < section.exclude.size(); ++i) {
    const auto& item = section.exclude.at<ExcludeItem>(i);
    if (listed(item.what, cell.what) && listed(item.batch, std::to_string(cell.batch)) && listed(item.threads, value_of(cell, "threads")) &&
        listed(item.precision, value_of(cell, "precision")) && listed(item.memory_format, value_of(cell, "memory_format"))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> expand_range(const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos || dots == 0 || text[dots - 1] < '0' || text[dots - 1] > '9') return {text};
  const size_t step_at = text.find_first_of("x+", dots);
  const int64_t first = parse_count(text.substr(0, dots));
  const int64_t last = parse_count(text.substr(dots + 2, step_at == std::string::npos ? std::string::npos : step_at - dots - 2));
  const bool times = step_at != std::string::npos && text[step_at] == 'x';
  const int64_t step = step_at == std::string::npos ? 1 : parse_count(text.substr(step_at + 1));
  if (step < (times ? 2 : 1) || (times && first < 1) || last < first) {
    throw Error(ErrorCode::kRecipe, cat("the range '", text, "' never reaches its end: its steps do not lead from ", first, " to ", last))
        .suggest("write 1..4, 1..8x2 or 2..10+4");
  }
  std::vector<std::string> values;
  for (int64_t value = first; value <= last && static_cast<int64_t>(values.size()) < kMostValues;
       value = times ? value * step : value + step)
    values.push_back(std::to_string(value));
  return values;
}

std::string BenchmarkCell::name() const {
  std::string text = cat(what, " batch=", batch);
  for (const auto& [key, value] : set) text += cat(" ", key, "=", value);
  return text;
}

std::vector<BenchmarkCell> cells_of(const BenchmarkSection& section) {
  if (section.size.size() > 2) {
    throw Error(ErrorCode::kRecipe, cat("'benchmark.size' has ", section.size.size(), " numbers; write [height, width] or one number"))
        .key("benchmark.size");
  }
  std::vector<BenchmarkCell> cells;
  for (const std::string& what : section.what) {
    if (std::find(kKinds.begin(), kKinds.end(), what) == kKinds.end()) {
      const std::string near = nearest(what, {kKinds.begin(), kKinds.end()});
      throw Error(ErrorCode::kRecipe, cat("'", what, "' is not a kind of work: write forward, train_step, decode, prefill, data or load"))
          .key("benchmark.what")
          .suggest(near.empty() ? "" : cat("did you mean '", near, "'?"));
    }
    cells.push_back({.what = what});
  }
  /// The values as written. Checks counts; an error names the key.
  const auto values_of = [](const std::string& key, const std::vector<std::string>& texts) {
    try {
      std::vector<std::string> values = expand(texts);
      if (key == "batch" || key == "threads") {
        for (const std::string& value : values) GALLEY_CHECK(parse_count(value) >= 1, "the value is ", value, "; it must be at least 1");
      }
      return values;
    } catch (const Error& error) {
      throw Error(ErrorCode::kRecipe, cat("'benchmark.", key, "': ", error.message()))
          .key("benchmark." + key)
          .suggest(error.suggestion().empty() ? "write 4, 1,2,8, 1..4, 1..8x2 or 2..10+4" : error.suggestion());
    }
  };
  const auto cross = [&](const std::string& key, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    const std::vector<std::string> values = values_of(key, texts);
    std::vector<BenchmarkCell> more;
    for (const BenchmarkCell& cell : cells) {
      for (const std::string& value : values) {
        more.push_back(cell);
        if (key == "batch") {
          more.back().batch = parse_count(value);
        } else {
          more.back().set.emplace_back(key, value);
        }
      }
    }
    cells = std::move(more);
  };
  cross("weights", section.sweep.weights);
  cross("precision", section.sweep.precision);
  cross("memory_format", section.sweep.memory_format);
  cross("threads", section.sweep.threads);
  cross("batch", section.sweep.batch.empty() ? section.batch : section.sweep.batch);
  std::erase_if(cells, [&](const BenchmarkCell& cell) { return excluded(section, cell); });
  if (cells.empty())
    throw Error(ErrorCode::kRecipe, "benchmark.exclude removes every cell; remove one of its items").key("benchmark.exclude");
  return cells;
}

}  // namespace galley
