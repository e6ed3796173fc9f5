#include "libcore/ops/random.h"

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

/// Multiplies each element by its factor: 0 or 1/(1-p). `sample_only`: one draw a sample; `batch`: one draw in all.
enum class Draw { kElement, kSample, kBatch };

void apply_mask(RefCall& call, double p, int64_t stream, Draw draw) {
  const RefArray& x = call.in(0);
  const RefArray& rng = call.in(1);
  const auto seed = static_cast<int64_t>(rng[0]), step = static_cast<int64_t>(rng[1]), first = static_cast<int64_t>(rng[2]);
  const int64_t elements = x.shape.elements();
  const int64_t per_sample = x.shape[0] == 0 ? 0 : elements / x.shape[0];
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t sample = draw == Draw::kBatch ? static_cast<int64_t>(kWholeBatch) : first + i / per_sample;
    const int64_t element = draw == Draw::kElement ? i % per_sample : 0;
    call.out()[i] = mask_keeps(mask_bits(seed, stream, step, sample, element), p) ? x[i] * mask_scale(p) : 0;
  }
}

void dropout_ref(RefCall& call) {
  const auto& attrs = call.attrs<DropoutAttrs>();
  apply_mask(call, attrs.p, attrs.stream, Draw::kElement);
}

void stochastic_depth_ref(RefCall& call) {
  const auto& attrs = call.attrs<StochasticDepthAttrs>();
  apply_mask(call, attrs.p, attrs.stream, attrs.mode == StochasticDepthMode::kRow ? Draw::kSample : Draw::kBatch);
}

constexpr RefEntry kEntries[] = {{"dropout", dropout_ref}, {"stochastic_depth", stochastic_depth_ref}};

}  // namespace

std::span<const RefEntry> ref_random() { return kEntries; }

}  // namespace galley
