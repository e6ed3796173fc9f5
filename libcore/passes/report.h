#pragma once
// What a pass did and what it declined, for verbose output and tests.

#include <iterator>
#include <string>
#include <vector>

namespace galley {

/// One line each: "layer1.0.conv1: conv2d + batch_norm", "layer1.0.conv2: not fused, its output has 2 readers".
struct PassReport {
  std::vector<std::string> done;
  std::vector<std::string> declined;
  int widened = 0;  ///< Operators on 16-bit values that compute in f32 between casts, since they have no kernel.

  void add(PassReport other) {
    done.insert(done.end(), std::make_move_iterator(other.done.begin()), std::make_move_iterator(other.done.end()));
    declined.insert(declined.end(), std::make_move_iterator(other.declined.begin()), std::make_move_iterator(other.declined.end()));
    widened += other.widened;
  }
};

}  // namespace galley
