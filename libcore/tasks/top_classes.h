#pragma once
// The most probable classes of a row of logits.

#include <cstdint>
#include <vector>

namespace galley {

struct ScoredClass {
  int64_t index = 0;
  double score = 0;  ///< softmax of the row
};
/// The `count` classes of the highest scores, best first; equal scores by index. All classes if there are fewer.
std::vector<ScoredClass> top_classes(const float* logits, int64_t classes, int64_t count);

}  // namespace galley
