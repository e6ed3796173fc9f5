#include <array>

#include "libcore/kernels/ref/activation.h"
#include "libcore/kernels/ref/table.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

void linear_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  const RefArray& w = call.in(1);
  RefArray& y = call.out();
  const int64_t in = w.shape[1], out = w.shape[0];
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    const int64_t row = i / out, o = i % out;
    double sum = call.has(2) ? call.in(2)[o] : 0;
    for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * w[o * in + k];
    y[i] = apply_activation(call.attrs<LinearAttrs>().activation, sum);
  }
}

void matmul_ref(RefCall& call) {
  const auto& t = call.attrs<MatmulAttrs>();
  const RefArray& a = call.in(0);
  const RefArray& b = call.in(1);
  RefArray& y = call.out();
  const int64_t m = y.shape[-2], n = y.shape[-1], k = a.shape[t.transpose_a ? -2 : -1];
  const int64_t batch = m * n == 0 ? 0 : y.shape.elements() / (m * n);
  for (int64_t p = 0; p < batch; ++p) {
    const int64_t a0 = a.shape.rank() == 2 ? 0 : p * m * k, b0 = b.shape.rank() == 2 ? 0 : p * k * n;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += a[a0 + (t.transpose_a ? l * m + i : i * k + l)] * b[b0 + (t.transpose_b ? j * k + l : l * n + j)];
        y[(p * m + i) * n + j] = sum;
      }
    }
  }
}

constexpr std::array kEntries{RefEntry{"linear", linear_ref}, RefEntry{"matmul", matmul_ref}};

}  // namespace

std::span<const RefEntry> ref_matmul() { return kEntries; }

}  // namespace galley
