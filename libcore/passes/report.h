#pragma once
// What a pass did and what it declined, for verbose output and tests.

#include <string>
#include <vector>

namespace galley {

/// One line each: "layer1.0.conv1: conv2d + batch_norm", "layer1.0.conv2: not fused, its output has 2 readers".
struct PassReport {
  std::vector<std::string> done;
  std::vector<std::string> declined;
};

}  // namespace galley
