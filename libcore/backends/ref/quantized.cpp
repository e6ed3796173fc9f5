#include "libcore/backends/ref/quantized.h"

#include <cmath>

#include "libcore/ops/elementwise.h"

namespace galley {

double finished_product(const RefCall& call, const QuantizedConv2dAttrs& attrs, double sum, int64_t i, int64_t o) {
  GALLEY_ASSERT(std::abs(sum) < 0x1p31, "a sum of products, ", sum, ", passes 32 bits");
  double real = sum * (attrs.input_scale * call.in(2)[o]);
  if (call.has(3)) real += call.in(3)[o];
  if (call.has(4)) real += attrs.residual_scale * (call.in(4)[i] - static_cast<double>(attrs.residual_zero_point));
  real = activate(attrs.activation, real);
  return attrs.output_dtype == DType::kF32 ? real : static_cast<double>(quantize_real(real, attrs.output()));
}

}  // namespace galley
