#pragma once
// Text on its way through normalization and pre-tokenization, and where in the input each of its bytes comes from.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace galley::text {

/// Bytes [begin, end).
struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// Valid UTF-8. Origins cost 8 bytes per byte, so they are kept only where positions are used.
class Buffer {
 public:
  /// `base`: where in the input the text begins.
  Buffer(std::string_view text, uint32_t base, bool tracked);

  const std::string& text() const { return text_; }
  bool tracked() const { return tracked_; }
  /// The part of the input that the bytes come from; {0, 0} if not tracked.
  Range origin(size_t begin, size_t end) const;

  /// Replaces the whole text. `rewrite` reads text() and calls emit for each part of the result, in order.
  class Writer {
   public:
    /// Appends text that stands for bytes [begin, end) of the old text; begin = end: it was inserted there.
    void emit(std::string_view text, size_t begin, size_t end);
    void emit_char(uint32_t c, size_t begin, size_t end);
    size_t size() const { return text_.size(); }

   private:
    friend class Buffer;
    explicit Writer(const Buffer& from) : from_(from) {}
    const Buffer& from_;
    std::string text_;
    std::vector<Range> origins_;
  };
  void rewrite(const std::function<void(Writer&)>& rewrite);
  /// Replaces each character by what `map` appends for it.
  void map(const std::function<void(uint32_t c, std::string& out)>& map);

 private:
  std::string text_;
  std::vector<Range> origins_;
  bool tracked_ = false;
};

}  // namespace galley::text
