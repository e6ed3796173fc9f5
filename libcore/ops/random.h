#pragma once
// Random operators: random words, dropout and stochastic depth. Masks are never stored: the backward draws them again (random_mask.h).

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

struct RandomBitsAttrs : OptionsOf<RandomBitsAttrs> {
  std::vector<int64_t> shape;
  int64_t stream = 0;
  bool whole_batch = false;  // one draw for the whole batch instead of one per sample of the first dimension
  void options(OptionVisitor& v) override;
};

const OpDef& random_bits_op();
const OpDef& dropout_op();
const OpDef& stochastic_depth_op();

/// Random words, i64 in 0..2^32-1, of that shape [N,...]. rng: i64 [3] = seed, step, global index of sample 0. A word depends on seed,
/// stream, step, the global index of its sample and its place within the sample, as the masks of dropout do (random_mask.h).
Value random_bits(Value rng, const RandomBitsAttrs& attrs);
/// Drops elements with probability p, scales the others by 1/(1-p). x: [N,...]; rng: i64 [3] = seed, step, global index of sample 0.
Value dropout(Value x, Value rng, const DropoutAttrs& attrs = {});
/// Drops whole samples (row) or the whole batch (batch) with probability p, scales what stays by 1/(1-p) (Huang et al. 2016).
Value stochastic_depth(Value x, Value rng, const StochasticDepthAttrs& attrs = {});

}  // namespace galley
