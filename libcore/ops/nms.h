#pragma once
// Non-maximum suppression: the best of boxes that overlap. Boxes are (x1, y1, x2, y2), x1 <= x2, y1 <= y2.

#include <limits>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct NmsAttrs : OptionsOf<NmsAttrs> {
  double iou_threshold = 0.5;
  int64_t max_output = 100;
  double score_threshold = -std::numeric_limits<double>::infinity();
  int64_t per_class = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& nms_op();

/// The chosen candidates of each sample, best first.
struct Nms {
  Value index;  // i64 [N,max_output]: row * K + class in scores; 0 after the last chosen one
  Value count;  // i64 [N]: how many are chosen
};
/// Candidates are the scores [N,R,K] of R rows and K classes; boxes are [N,R,4], the same for all classes, or [N,R,K,4]. They are visited
/// by falling score, equal ones by rising index. A candidate is chosen unless a chosen box of its class overlaps it with an intersection
/// over union of more than `iou_threshold`. Candidates with a score of at most `score_threshold`, or NaN, are left out, and of each class
/// all after the first `per_class` (0: no limit). `count` (optional, i64 [N]): the number of valid rows of a sample, the first ones.
/// As torchvision.ops.batched_nms, and its detectors' selection of the best of each class.
Nms nms(Value boxes, Value scores, const NmsAttrs& attrs, Value count = {});

}  // namespace galley
