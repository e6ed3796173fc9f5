#include "libcore/base/error.h"

#include <algorithm>

namespace galley {

std::string Place::str() const {
  std::string text = file;
  if (line > 0) text += cat(":", line);
  if (line > 0 && column > 0) text += cat(":", column);
  return text;
}

std::string Error::text() const {
  std::string text;
  const bool named = place_.line == 0 && message_.find(place_.file) != std::string::npos;
  if (!place_.file.empty() && !named) text += place_.str() + ": ";
  text += "error: " + message_;
  if (!excerpt_.empty()) {
    const std::string number = cat(place_.line);
    text += cat("\n ", number, " | ", excerpt_, "\n ", std::string(number.size(), ' '), " | ");
    text += std::string(static_cast<size_t>(std::max(0, place_.column - 1)), ' ');
    text += "^" + std::string(static_cast<size_t>(std::max(0, width_ - 1)), '~');
    if (!suggestion_.empty()) text += "  " + suggestion_;
  } else if (!suggestion_.empty()) {
    text += (message_.find('\n') == std::string::npos ? "; " : "\n") + suggestion_;
  }
  for (const Error& other : others_) text += "\n" + other.text();
  return text;
}

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string text = cat("internal error: ", condition, " does not hold at ", file, ":", line);
  if (!message.empty()) text += ": " + message;
  throw InternalError(text + " (this is a bug in Galley: please report it)");
}

// Optimal string alignment distance (Damerau-Levenshtein without repeated edits), O(|a| |b|).
static int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// The words of a name like resnet50_imagenet, sorted.
static std::vector<std::string> sorted_words(std::string_view name) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('_', begin), name.size());
    words.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  std::sort(words.begin(), words.end());
  return words;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 200) return "";
  // Of up to three letters, two others make another word.
  int best = word.size() <= 3 ? 2 : static_cast<int>(std::max<size_t>(2, word.size() / 3)) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 200) continue;
    // "bce" means "bce_with_logits".
    const bool begins = word.size() >= 2 && candidate.starts_with(cat(word, "_"));
    // "resnet50_imagenet" means "imagenet_resnet50".
    const bool swapped = word.size() == candidate.size() && word != candidate && word.find('_') != std::string_view::npos &&
                         sorted_words(word) == sorted_words(candidate);
    const int distance = begins || swapped ? 1 : edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

}  // namespace galley
