#pragma once
// PixelConversion: how the numbers that a model reads follow from the bytes of an image, where a batch holds bytes.

#include <map>
#include <string>
#include <vector>

namespace galley {

/// (x / 255 - mean) / std, or (x - mean) / std without `scale`.
struct PixelConversion {
  std::vector<double> mean{0}, std{1};  ///< One for all channels, or one for each.
  bool scale = true;
};
/// By the name of the field.
using PixelConversions = std::map<std::string, PixelConversion>;

}  // namespace galley
