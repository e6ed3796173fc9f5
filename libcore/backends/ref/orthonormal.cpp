// The reference of orthonormal_columns.
#include "libcore/ops/orthonormal.h"

#include <cmath>

#include "libcore/backends/ref/table.h"

namespace galley {
namespace {

void orthonormal_columns_ref(RefCall& call) {
  RefArray& y = call.out();
  y.v = call.in(0).v;
  const int64_t rows = y.shape[0], columns = y.shape[1];
  const auto at = [&](int64_t row, int64_t column) -> double& { return y[row * columns + column]; };
  const auto product = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += at(row, a) * at(row, b);
    return sum;
  };
  for (int64_t c = 0; c < columns; ++c) {
    const double before = std::sqrt(product(c, c));
    for (int64_t earlier = 0; earlier < c; ++earlier) {
      const double part = product(earlier, c);
      for (int64_t row = 0; row < rows; ++row) at(row, c) -= part * at(row, earlier);
    }
    const double norm = std::sqrt(product(c, c));
    for (int64_t row = 0; row < rows; ++row) at(row, c) = norm <= kDependentColumn * before ? 0 : at(row, c) / norm;
  }
}

constexpr RefEntry kEntries[] = {{"orthonormal_columns", orthonormal_columns_ref}};

}  // namespace

std::span<const RefEntry> ref_orthonormal() { return kEntries; }

}  // namespace galley
