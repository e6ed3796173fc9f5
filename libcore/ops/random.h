#pragma once
// Random operators: dropout and stochastic depth. Their masks are never stored: the backward draws them again (random_mask.h).

#include <array>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct DropoutAttrs : OptionsOf<DropoutAttrs> {
  double p = 0.5;
  int64_t stream = 0;
  void options(OptionVisitor& v) override;
};

enum class StochasticDepthMode { kRow, kBatch };
inline constexpr std::array<std::string_view, 2> kStochasticDepthModeNames{"row", "batch"};
struct StochasticDepthAttrs : OptionsOf<StochasticDepthAttrs> {
  double p = 0.5;
  StochasticDepthMode mode = StochasticDepthMode::kRow;
  int64_t stream = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& dropout_op();
const OpDef& stochastic_depth_op();

/// Drops elements with probability p, scales the others by 1/(1-p). x: [N,...]; rng: i64 [3] = seed, step, global index of sample 0.
Value dropout(Value x, Value rng, const DropoutAttrs& attrs = {});
/// Drops whole samples (row) or the whole batch (batch) with probability p, scales what stays by 1/(1-p) (Huang et al. 2016).
Value stochastic_depth(Value x, Value rng, const StochasticDepthAttrs& attrs = {});

}  // namespace galley
