#pragma once
// Large products in 16 bits of matrices whose rows do not begin at multiples of 16 bytes, as those of a vocabulary of 50257: libraries
// compute them several times slower. Parts of them pass through aligned scratch memory.

#include <memory>

#include "libcore/backends/cuda/library_products.h"

namespace galley {

class AlignedProduct {
 public:
  struct Limits {
    double least_operations = 0x1p34;         ///< Of products that gain more than the copies cost.
    int64_t most_bytes = int64_t{128} << 20;  ///< Of a part.
  };
  /// Null: the product gains nothing, or is of a form that is not divided.
  static std::unique_ptr<AlignedProduct> of(const ProductForm& form, const Limits& limits);
  static std::unique_ptr<AlignedProduct> of(const ProductForm& form) { return of(form, Limits()); }
  int64_t scratch_bytes() const;
  /// As LibraryProduct::run.
  bool run(Stream& stream, const void* a, const void* b, const void* bias, void* y, void* scratch) const;

 private:
  /// The operand that is not aligned, and what is divided: y or a by rows, or the transposed a by the columns of its array.
  enum class Kind { kResult, kRows, kColumns };

  AlignedProduct(const ProductForm& form, Kind kind, int64_t most_bytes);
  ProductForm part_of(int64_t rows) const;

  ProductForm form_;
  Kind kind_;
  int64_t part_ = 0, line_ = 0;  // rows of y in a part, and of the scratch memory
  std::unique_ptr<LibraryProduct> whole_, last_;
};

}  // namespace galley
