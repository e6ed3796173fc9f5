#pragma once
// The order of the frames of a video by their names.

#include <string_view>

namespace galley {

/// Compares names: numbers in them count by value, so that frame_9.png precedes frame_10.png; equal values by the text.
struct FrameOrder {
  bool operator()(std::string_view a, std::string_view b) const;
};

}  // namespace galley
