#pragma once
// Matrix products by cuBLASLt: the only file that knows how a product is described to the library.

#include <memory>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// y[b] = a[b] b[b] for row-major matrices m x k and k x n, which may be stored transposed; then a bias of n numbers and relu.
struct ProductForm {
  /// Of a, b and y: f32, bf16 or f16, with sums in f32; or i8, with y and sums in i32, b transposed, and n and k multiples
  /// of 4; or f8_e4m3, with y and sums in f32, b transposed, and n and k multiples of 16.
  DType dtype = DType::kF32;
  bool a_transposed = false, b_transposed = false;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t a_batch = 0, b_batch = 0;  ///< Elements between matrices; 0: the same matrix for all.
  int64_t a_line = 0;                ///< Elements between rows of a as they are stored; 0: rows follow one another.
  bool bias = false;                 ///< In the dtype of the operands.
  bool relu = false;
  bool tf32 = false;          ///< Operands in f32 may be rounded to TF32.
  bool deterministic = true;  ///< Equal operands give equal bits in each run.
};

/// Why the library does not compute such a product; empty: it does.
std::string library_declines(const ProductForm& form);

/// A product of one form. The library chooses an algorithm at the first run, by its heuristics.
class LibraryProduct {
 public:
  explicit LibraryProduct(const ProductForm& form);
  ~LibraryProduct();
  /// Memory that algorithms may use.
  int64_t workspace_bytes() const;
  /// Enqueues the product. False: the library has no algorithm for it on this GPU, and nothing was enqueued. Throws Error (kResource).
  bool run(Stream& stream, const void* a, const void* b, const void* bias, void* y, void* workspace) const;

 private:
  struct Plan;
  ProductForm form_;
  std::unique_ptr<Plan> plan_;
};

}  // namespace galley
