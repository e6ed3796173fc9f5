#pragma once
// Large products in 16 bits of matrices whose rows do not begin at multiples of 16 bytes, as those of a vocabulary of 50257: libraries
// compute them several times slower. Parts of them pass through aligned scratch memory, with lines of zeros added to the other operand.

#include <map>
#include <memory>
#include <vector>

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
  struct Part {
    int64_t row, rows;  // of y
    const LibraryProduct* product;
  };
  const LibraryProduct* product_of(int64_t rows);

  ProductForm form_;
  Kind kind_;
  int64_t line_ = 0, lines_ = 0;                                 // of the scratch memory for the operand
  int64_t b_elements_ = 0;                                       // of b with its lines added; 0: b is read where it is
  std::map<int64_t, std::unique_ptr<LibraryProduct>> products_;  // by their rows
  std::vector<Part> parts_;
};

}  // namespace galley
