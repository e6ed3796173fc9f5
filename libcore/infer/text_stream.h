#pragma once
// TextStream: turns the bytes of generated tokens into text that can be shown at once.

#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// Holds back what may still change: the bytes of an unfinished UTF-8 character, and a tail that may begin a stop string. Bytes that can
/// never become a character are replaced by U+FFFD.
class TextStream {
 public:
  /// Stop strings are not empty.
  explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  /// Appends a token's bytes. Returns the text that became final. Nothing follows a stop string, and the stop string itself is left out.
  std::string push(std::string_view bytes);
  /// The text held back, at the end of the tokens.
  std::string finish();
  /// Has a stop string been found?
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string bytes_;  // not yet known to be characters
  std::string text_;   // characters that may begin a stop string
  bool stopped_ = false;
};

}  // namespace galley
