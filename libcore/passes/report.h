#pragma once
// PassReport: what a pass did and what it declined, for verbose output and tests.

#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace galley {

/// Lines such as "layer1.0.conv1: conv2d + batch_norm" and "layer1.0.conv2: not fused, its output has 2 readers".
struct PassReport {
  std::vector<std::string> done;
  std::vector<std::string> declined;
  std::map<std::string, int> attention;  ///< "flash, REASON": by how many operators of attention (choose_attention.h).
  int widened = 0;                       ///< Operators on 16-bit values without a kernel, which compute in f32 between casts.

  void add(PassReport other) {
    done.insert(done.end(), std::make_move_iterator(other.done.begin()), std::make_move_iterator(other.done.end()));
    declined.insert(declined.end(), std::make_move_iterator(other.declined.begin()), std::make_move_iterator(other.declined.end()));
    for (const auto& [choice, count] : other.attention) attention[choice] += count;
    widened += other.widened;
  }
};

}  // namespace galley
