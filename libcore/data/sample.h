#pragma once
// Sample: what a source gives for one index: a map of named fields, of the types that Source::fields() declares. `input` is an Image or a
// Tensor, `label` a class index or the classes of positions or pixels, `target` a Tensor of regression values.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "libcore/data/image.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The class of each pixel, u8 [1,H,W]; kNoClass where a pixel has none. In a batch: i64 [N,H,W], kNoClass as the loader's pad_label.
struct Mask {
  static constexpr uint8_t kNoClass = 255;
  Image classes;
};

using FieldValue = std::variant<int64_t, Image, Mask, Tensor>;

/// What is wrong with a file that was read all the same, its values as in a correct file. `kind` is one of few words ("no end marker",
/// "extraneous bytes", ...) under which a loader counts; empty for a correct file.
struct Irregularity {
  std::string kind, message;
};

/// Few fields, so a list.
class Sample {
 public:
  void set(std::string name, FieldValue value) { fields_.emplace_back(std::move(name), std::move(value)); }
  /// The field of that name, or null.
  FieldValue* find(std::string_view name) {
    for (auto& [key, value] : fields_)
      if (key == name) return &value;
    return nullptr;
  }
  const FieldValue* find(std::string_view name) const { return const_cast<Sample*>(this)->find(name); }
  /// `input` where it is an image, else null.
  Image* image() {
    FieldValue* input = find("input");
    return input == nullptr ? nullptr : std::get_if<Image>(input);
  }
  const Image* image() const { return const_cast<Sample*>(this)->image(); }
  const std::vector<std::pair<std::string, FieldValue>>& fields() const { return fields_; }
  std::vector<std::pair<std::string, FieldValue>>& fields() { return fields_; }

  Irregularity irregularity;  ///< Of the file that it was read from.

 private:
  std::vector<std::pair<std::string, FieldValue>> fields_;
};

/// A damaged or unusable sample. `cause` is one of few words ("truncated", "checksum", "format", ...) under which
/// `on_error: skip` counts.
class BadSample : public Error {
 public:
  BadSample(std::string cause, std::string message) : Error(ErrorCode::kInput, std::move(message)), cause_(std::move(cause)) {}
  const std::string& cause() const { return cause_; }

 private:
  std::string cause_;
};

}  // namespace galley
