#include "libcore/ops/quantize.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void lookup_ref(RefCall& call) {
  const auto& table = call.attrs<LookupAttrs>().table;
  const double low = call.context().in(0).dtype == DType::kU8 ? 0 : -128;
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    call.out()[i] = static_cast<double>(table[static_cast<size_t>(call.in(0)[i] - low)]);
  }
}

constexpr RefEntry kEntries[] = {{"lookup", lookup_ref}};

}  // namespace

std::span<const RefEntry> ref_quantize() { return kEntries; }

}  // namespace galley
