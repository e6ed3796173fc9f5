#include "libcore/ops/matmul.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void matmul_ref(RefCall& call) {
  const auto& attrs = call.attrs<MatmulAttrs>();
  const RefArray &a = call.in(0), &b = call.in(1);
  RefArray& y = call.out();
  const int64_t m = y.shape[-2], n = y.shape[-1], k = a.shape[attrs.transpose_a ? -2 : -1];
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    const int64_t batch = i / (m * n), row = i / n % m, column = i % n;
    const int64_t a0 = a.shape.rank() == 2 ? 0 : batch * m * k, b0 = b.shape.rank() == 2 ? 0 : batch * k * n;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += a[a0 + (attrs.transpose_a ? j * m + row : row * k + j)] * b[b0 + (attrs.transpose_b ? column * k + j : j * n + column)];
    }
    y[i] = sum;
  }
}

constexpr RefEntry kEntries[] = {{"matmul", matmul_ref}};

}  // namespace

std::span<const RefEntry> ref_matmul() { return kEntries; }

}  // namespace galley
