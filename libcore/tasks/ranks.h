#pragma once
// Top-k accuracy: counts how often the true class is among the highest scores.

#include <cmath>
#include <cstdint>

namespace galley {

/// Counts of rows whose true class ranks first, and among the first five. The rank is the number of classes with a higher score, or an
/// equal score and a lower index (torch.topk on the CPU breaks ties in the same way in practice). Rows whose true class has the score NaN,
/// and labels that are not classes, are not counted.
struct RankCounts {
  int64_t top1 = 0, top5 = 0;

  void add(const float* row, int64_t classes, int64_t label) {
    if (label < 0 || label >= classes || std::isnan(row[label])) return;
    int64_t rank = 0;
    for (int64_t c = 0; c < classes; ++c) rank += row[c] > row[label] || (row[c] == row[label] && c < label);
    top1 += rank < 1;
    top5 += rank < 5;
  }
};

}  // namespace galley
