#include "libcore/ops/random.h"

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

void random_bits_ref(RefCall& call) {
  const auto& attrs = call.attrs<RandomBitsAttrs>();
  const RefArray& rng = call.in(0);
  const auto seed = static_cast<int64_t>(rng[0]), step = static_cast<int64_t>(rng[1]), first = static_cast<int64_t>(rng[2]);
  RefArray& bits = call.out();
  const int64_t elements = bits.shape.elements(), per_sample = attrs.whole_batch || elements == 0 ? elements : elements / bits.shape[0];
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t sample = attrs.whole_batch ? static_cast<int64_t>(kWholeBatch) : first + i / per_sample;
    bits[i] = mask_bits(seed, attrs.stream, step, sample, i % per_sample);
  }
}

constexpr RefEntry kEntries[] = {{"random_bits", random_bits_ref}};

}  // namespace

std::span<const RefEntry> ref_random() { return kEntries; }

}  // namespace galley
