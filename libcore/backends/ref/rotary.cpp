// The table of rotary position embeddings.

#include "libcore/ops/rotary.h"

#include <cmath>

#include "libcore/backends/ref/table.h"

namespace galley {
namespace {

void rotary_table_ref(RefCall& call) {
  const auto& a = call.attrs<RotaryTableAttrs>();
  const auto pairs = static_cast<int64_t>(a.frequencies.size());
  const bool given = call.has(0);
  const int64_t rows = given ? call.in(0).shape.elements() : a.positions;
  for (int64_t p = 0; p < rows; ++p) {
    const double position = given ? call.in(0)[p] : static_cast<double>(p);
    const auto length = call.has(1) ? static_cast<int64_t>(call.in(1)[p / (rows / call.in(0).shape[0])]) : 0;
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = position * a.frequencies[static_cast<size_t>(i)] * dynamic_stretch(a, length, i);
      call.out()[p * 2 * pairs + i] = a.factor * std::cos(angle);
      call.out()[(p * 2 + 1) * pairs + i] = a.factor * std::sin(angle);
    }
  }
}

constexpr RefEntry kEntries[] = {{"rotary_table", rotary_table_ref}};

}  // namespace

std::span<const RefEntry> ref_rotary() { return kEntries; }

}  // namespace galley
