#pragma once
// What detectors compute besides layers: boxes on grids (anchors), the objects that training compares them with, hard examples, and the
// chosen boxes. Boxes are (x1, y1, x2, y2) in pixels.

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct GridBoxesAttrs : OptionsOf<GridBoxesAttrs> {
  std::vector<int64_t> grid;      // rows and columns of each level
  std::vector<double> strides;    // distances of rows and of columns of each level
  std::vector<int64_t> per_cell;  // boxes of a cell of each level
  std::vector<double> corners;    // the boxes of the first cell of each level, 4 numbers each
  void options(OptionVisitor& v) override;
};

/// Whether a box gets anchors that overlap it with less than the threshold.
enum class MatchBest {
  kNo,
  kLowQuality,  ///< Anchors that no anchor exceeds for some box take the box that they overlap most: torchvision's Matcher.
  kEveryBox,    ///< The best anchor of each box takes that box, of two boxes the later: torchvision's SSDMatcher.
};
inline constexpr std::array<std::string_view, 3> kMatchBestNames{"no", "low_quality", "every_box"};

struct MatchBoxesAttrs : OptionsOf<MatchBoxesAttrs> {
  double high = 0.5;
  double low = 0.5;
  MatchBest best = MatchBest::kNo;
  void options(OptionVisitor& v) override;
};
struct MatchCentersAttrs : OptionsOf<MatchCentersAttrs> {
  double radius = 1.5;
  int64_t first = 0, last = 0;  // anchors of the first and of the last level
  void options(OptionVisitor& v) override;
};
struct TakeBoxesAttrs : OptionsOf<TakeBoxesAttrs> {
  int64_t first_label = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& grid_boxes_op();
const OpDef& match_boxes_op();
const OpDef& match_centers_op();
const OpDef& top_mask_op();
const OpDef& take_boxes_op();

/// Boxes that repeat in every cell of several grids, f32 [A,4]: levels in order, in a level row by row, in a cell as listed. As
/// torchvision's AnchorGenerator and DefaultBoxGenerator.
Value grid_boxes(Graph& graph, const GridBoxesAttrs& attrs);

/// The objects that anchors are compared with.
struct MatchedBoxes {
  Value boxes;   // [N,A,4]: the box of the object, or the anchor itself
  Value labels;  // i64 [N,A]: the label of the object; 0: background; -1: neither
};
/// anchors [A,4], or [N,A,4] of each sample. boxes [M,4], labels i64 [M] and offsets i64 [N+1] are jagged fields: the objects of sample n
/// are rows offsets[n] .. offsets[n+1]-1. An anchor takes the object that it overlaps most, of equal ones the first, if their intersection
/// over union is at least `high`; below `low` it is background.
MatchedBoxes match_boxes(Value anchors, Value boxes, Value labels, Value offsets, const MatchBoxesAttrs& attrs);

/// As match_boxes, by FCOS' rule (Tian et al. 2019): an anchor takes an object whose center is nearer than `radius` sizes of the anchor
/// along both axes, that has the anchor's center inside, and whose farthest side is more than 4 and less than 8 sizes away (of the first
/// level less than 8, of the last more than 4); of several the one with the smallest area, where areas that float32 cannot tell from 1e8
/// apart are equal, then the first.
MatchedBoxes match_centers(Value anchors, Value boxes, Value labels, Value offsets, const MatchCentersAttrs& attrs);

/// values [N,R], count f32 [N] -> bool [N,R]: true for the values of a sample that fewer than count[n] exceed. Of equal values the first
/// counts as larger.
Value top_mask(Value values, Value count);

/// The chosen candidates of nms.
struct TakenBoxes {
  Value boxes;   // [N,D,4]
  Value scores;  // [N,D]
  Value labels;  // i64 [N,D]: first_label + class
};
/// boxes [N,R,4] or [N,R,K,4], scores [N,R,K], index i64 [N,D] and count i64 [N] of nms. Rows from count[n] on are 0.
TakenBoxes take_boxes(Value boxes, Value scores, Value index, Value count, const TakeBoxesAttrs& attrs = {});

}  // namespace galley
