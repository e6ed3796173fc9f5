#include "libcore/backends/cpu/orthonormal.h"

#include <array>
#include <cmath>

#include "libcore/base/parallel.h"
#include "libcore/ops/orthonormal.h"

namespace galley {
namespace {

/// In f32, with sums in f64. A column's sums are those of one thread, so that their bits do not depend on the number of threads.
class OrthonormalColumns : public PreparedKernel {
 public:
  explicit OrthonormalColumns(const KernelQuery& q) : rows_(q.in(0).shape[0]), columns_(q.in(0).shape[1]) {}
  int64_t scratch_bytes() const override { return (rows_ * columns_ + 2 * columns_) * 8; }

  void run(Stream&, const KernelArgs& args) const override {
    const float* x = args.in<float>(0);
    auto* values = static_cast<double*>(args.scratch);  // by columns
    double* before = values + rows_ * columns_;
    parallel_for(columns_, 1, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        double* column = values + c * rows_;
        for (int64_t row = 0; row < rows_; ++row) column[row] = static_cast<double>(x[row * columns_ + c]);
        before[c] = std::sqrt(product(column, column));
      }
    });
    for (int64_t c = 0; c < columns_; ++c) {
      double* column = values + c * rows_;
      const double norm = std::sqrt(product(column, column));
      const double scale = norm <= kDependentColumn * before[c] ? 0 : 1 / norm;
      for (int64_t row = 0; row < rows_; ++row) column[row] *= scale;
      parallel_for(columns_ - c - 1, 1, [&](int64_t first, int64_t last) {
        for (int64_t later = c + 1 + first; later < c + 1 + last; ++later) subtract(values + later * rows_, column);
      });
    }
    float* y = args.out<float>(0);
    for (int64_t c = 0; c < columns_; ++c) {
      const double* column = values + c * rows_;
      for (int64_t row = 0; row < rows_; ++row) y[row * columns_ + c] = static_cast<float>(column[row]);
    }
  }

 private:
  double product(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t row = 0; row < rows_; ++row) sum += a[row] * b[row];
    return sum;
  }
  /// Takes its part along a unit vector out of a column.
  void subtract(double* column, const double* unit) const {
    const double part = product(column, unit);
    for (int64_t row = 0; row < rows_; ++row) column[row] -= part * unit[row];
  }

  int64_t rows_, columns_;
};

const std::array<Kernel, 1> kKernels{
    {{"orthonormal_columns", "gram_schmidt",
      [](const KernelQuery& q) {
        return q.in(0).dtype == DType::kF32 ? Support::yes() : Support::no(cat("values of type ", q.in(0).dtype));
      },
      [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<OrthonormalColumns>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_orthonormal() { return kKernels; }

}  // namespace galley
