#include "libcore/ops/matmul.h"

#include "libcore/backends/ref/products.h"
#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void matmul_ref(RefCall& call) {
  const auto& attrs = call.attrs<MatmulAttrs>();
  const RefArray &a = call.in(0), &b = call.in(1);
  RefArray& y = call.out();
  const int64_t m = y.shape[-2], n = y.shape[-1], k = a.shape[attrs.transpose_a ? -2 : -1];
  for (int64_t i = 0; n > 0 && i < y.shape.elements() / n; ++i) {
    const int64_t batch = i / m, row = i % m;
    const int64_t a0 = a.shape.rank() == 2 ? 0 : batch * m * k, b0 = b.shape.rank() == 2 ? 0 : batch * k * n;
    std::vector<double> terms(static_cast<size_t>(k));
    for (int64_t j = 0; j < k; ++j) terms[static_cast<size_t>(j)] = a[a0 + (attrs.transpose_a ? j * m + row : row * k + j)];
    double* sums = y.v.data() + i * n;
    if (attrs.transpose_b) {
      for (int64_t column = 0; column < n; ++column) sums[column] = sum_of_products(terms.data(), b.v.data() + b0 + column * k, k);
    } else {
      for (int64_t j = 0; j < k; ++j) add_products(terms[static_cast<size_t>(j)], b.v.data() + b0 + j * n, sums, n);
    }
  }
}

constexpr RefEntry kEntries[] = {{"matmul", matmul_ref}};

}  // namespace

std::span<const RefEntry> ref_matmul() { return kEntries; }

}  // namespace galley
