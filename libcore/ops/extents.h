#pragma once
// Extents: the rows and columns of each image of a batch [N,C,H,W] that hold the image, i64 [N,2]. The image is at the top left; what lies
// outside is padding. By these operators a layer computes for each image what it would compute for an array of the image's own size.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct FillOutsideAttrs : OptionsOf<FillOutsideAttrs> {
  double value = 0;
  void options(OptionVisitor& v) override;
};
/// Options are one number for both axes, or [rows, columns].
struct ExtentsAfterAttrs : OptionsOf<ExtentsAfterAttrs> {
  std::vector<int64_t> kernel_size{1}, stride{1}, padding{0}, dilation{1}, factor{1};
  void options(OptionVisitor& v) override;
};

const OpDef& fill_outside_op();
const OpDef& extents_after_op();
OpTable extents_ops();

/// x [N,C,H,W], extents i64 [N,2] -> x where row < extents[n,0] and column < extents[n,1], and `value` elsewhere.
Value fill_outside(Value x, Value extents, double value = 0);
/// Extents of the result of a layer, for those of its input: first times `factor` (nearest resize), then the number of windows
/// (extent + 2 padding - dilation (kernel_size - 1) - 1) / stride + 1, rounded down, at least 0.
Value extents_after(Value extents, const ExtentsAfterAttrs& attrs);

/// Throws unless `extents` is i64 [N,2] for x [N,C,H,W].
void check_extents(const TensorType& extents, const TensorType& x);
/// Throws unless input 1 of a mean over all pixels of input 0, the extents, is absent or fits, with one mean as the result.
void check_mean_inside(const OpContext& c, const std::vector<int64_t>& output_size);
/// 1 over the number of pixels inside, [N,1,1,1] of that floating dtype; 1 for an image without pixels.
Value inside_share(Value extents, DType dtype);

}  // namespace galley
