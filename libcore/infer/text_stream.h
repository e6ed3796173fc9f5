#pragma once
// TextStream: turns the bytes of generated tokens into text that can be shown at once.

#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// Holds back text that may still change: the bytes of an incomplete UTF-8 character, and an end that may begin a stop string. Bytes that
/// cannot become a character are replaced by U+FFFD.
class TextStream {
 public:
  /// Stop strings must not be empty.
  explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  /// Appends the bytes of a token. Returns the text that became final. It excludes the stop string and everything after it.
  std::string push(std::string_view bytes);
  /// Ends the stream. Returns the text held back.
  std::string finish();
  /// Whether a stop string was found.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string bytes_;  // not yet known to be characters
  std::string text_;   // characters that may begin a stop string
  bool stopped_ = false;
};

}  // namespace galley
