#include "libcore/ops/shuffle.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void channel_shuffle_ref(RefCall& call) {
  const Shape& x = call.in(0).shape;
  const int64_t groups = call.attrs<ChannelShuffleAttrs>().groups, part = x[1] / groups;
  int64_t pixels = 1;
  for (int d = 2; d < x.rank(); ++d) pixels *= x[d];
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t c = 0; c < x[1]; ++c) {
      const int64_t from = c % groups * part + c / groups;
      for (int64_t i = 0; i < pixels; ++i) call.out()[(n * x[1] + c) * pixels + i] = call.in(0)[(n * x[1] + from) * pixels + i];
    }
  }
}

constexpr RefEntry kEntries[] = {{"channel_shuffle", channel_shuffle_ref}};

}  // namespace

std::span<const RefEntry> ref_shuffle() { return kEntries; }

}  // namespace galley
