#pragma once
// The rows that the training of detectors with regions compares with objects: proposals with the objects themselves, and a sample of them.

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct SampleLabelsAttrs : OptionsOf<SampleLabelsAttrs> {
  int64_t size = 256;
  double positive_fraction = 0.5;
  bool random = true;
  int64_t stream = 0;
  void options(OptionVisitor& v) override;
};
struct TrueRowsAttrs : OptionsOf<TrueRowsAttrs> {
  int64_t size = 1;
  void options(OptionVisitor& v) override;
};

const OpDef& append_objects_op();
const OpDef& sample_labels_op();
const OpDef& true_rows_op();

/// Rows of boxes, of which the first are valid.
struct CountedBoxes {
  Value boxes;  // [N,R,4]
  Value count;  // i64 [N]
};
/// boxes [N,P,4] with `count` valid rows, objects [M,4] and their offsets i64 [N+1] (a jagged field) -> [N,P+M,4]: the objects of a sample
/// follow its valid rows; the other rows are 0.
CountedBoxes append_objects(Value boxes, Value count, Value objects, Value offsets);

/// labels i64 [N,R] of match_boxes -> bool [N,R]: at most `size` rows of each sample, of which at most `positive_fraction` have an object
/// (label above 0) and the others are background (label 0). As torchvision's BalancedPositiveNegativeSampler. `count` (optional, i64 [N]):
/// the number of valid rows. Rows are drawn by random words that depend on the random key `rng` (i64 [3], as random_bits), on the stream,
/// on the global index of the sample and on the row; without `rng` on the stream and the row. Unless `random`, the first rows are taken.
Value sample_labels(Value labels, Value count, Value rng, const SampleLabelsAttrs& attrs);

/// Positions of true values.
struct TrueRows {
  Value index;  // i64 [N,size], rising; 0 after the last one
  Value count;  // i64 [N]
};
/// mask bool [N,R]: the first `size` true values of each sample.
TrueRows true_rows(Value mask, int64_t size);

}  // namespace galley
