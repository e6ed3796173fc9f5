#include "libcore/ops/quantize.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void quantize_ref(RefCall& call) {
  const QuantParams params = call.attrs<QuantizeAttrs>().params();
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    call.out()[i] = static_cast<double>(quantize_value(static_cast<float>(call.in(0)[i]), params));
  }
}

void dequantize_ref(RefCall& call) {
  const auto& a = call.attrs<DequantizeAttrs>();
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = a.scale * (call.in(0)[i] - static_cast<double>(a.zero_point));
}

void lookup_ref(RefCall& call) {
  const auto& table = call.attrs<LookupAttrs>().table;
  const double low = call.context().in(0).dtype == DType::kU8 ? 0 : -128;
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    call.out()[i] = static_cast<double>(table[static_cast<size_t>(call.in(0)[i] - low)]);
  }
}

void dequantize_weight_ref(RefCall& call) {
  const auto& a = call.attrs<DequantizeWeightAttrs>();
  RefArray& y = call.out();
  const int64_t columns = y.shape[-1], stored_columns = call.in(0).shape[-1];
  const int64_t per_output = y.shape[0] == 0 ? 0 : y.shape.elements() / y.shape[0];
  const int64_t groups = a.group_size == 0 ? 1 : call.in(1).shape[1];
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    double q = 0;
    if (a.bits == 8) {
      q = call.in(0)[i];
    } else {
      const int64_t row = i / columns, column = i % columns;
      const auto byte = static_cast<int64_t>(call.in(0)[row * stored_columns + column / 2]);
      const int64_t half = column % 2 == 0 ? byte & 15 : byte >> 4;
      q = static_cast<double>(half >= 8 ? half - 16 : half);
    }
    const int64_t o = i / per_output, group = a.group_size == 0 ? 0 : i % per_output / a.group_size;
    y[i] = call.in(1)[o * groups + group] * (q - (call.has(2) ? call.in(2)[o * groups + group] : 0));
  }
}

constexpr RefEntry kEntries[] = {
    {"quantize", quantize_ref},
    {"dequantize", dequantize_ref},
    {"lookup", lookup_ref},
    {"dequantize_weight", dequantize_weight_ref},
};

}  // namespace

std::span<const RefEntry> ref_quantize() { return kEntries; }

}  // namespace galley
