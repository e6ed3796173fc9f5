#include "libcore/backends/cuda/aligned_products.h"

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

constexpr int64_t kAligned = 8;  // elements

int64_t multiple(int64_t count, int64_t of) { return (count + of - 1) / of * of; }
bool is_aligned(int64_t line) { return line % kAligned == 0; }

void copy_lines(Stream& stream, const void* from, int64_t from_line, void* to, int64_t to_line, int64_t rows, int64_t columns) {
  const device::CopyLinesCall call{.from = static_cast<const uint16_t*>(from),
                                   .to = static_cast<uint16_t*>(to),
                                   .rows = rows,
                                   .columns = columns,
                                   .from_line = from_line,
                                   .to_line = to_line};
  launch_elements(stream, "copy_lines", rows * device::kThreads, call);
}

}  // namespace

std::unique_ptr<AlignedProduct> AlignedProduct::of(const ProductForm& form, const Limits& limits) {
  const double operations = 2.0 * static_cast<double>(form.m) * static_cast<double>(form.n) * static_cast<double>(form.k);
  if ((form.dtype != DType::kBF16 && form.dtype != DType::kF16) || form.batch != 1 || operations < limits.least_operations) return nullptr;
  const bool a = is_aligned(form.a_transposed ? form.m : form.k), b = is_aligned(form.b_transposed ? form.k : form.n);
  const bool y = is_aligned(form.n);
  const auto make = [&](Kind kind) { return std::unique_ptr<AlignedProduct>(new AlignedProduct(form, kind, limits.most_bytes)); };
  if (a && b && !y) return make(Kind::kResult);
  if (!a && b && y && !form.a_transposed) return make(Kind::kRows);
  if (!a && b && y && form.a_transposed && !form.bias) return make(Kind::kColumns);
  return nullptr;
}

AlignedProduct::AlignedProduct(const ProductForm& form, Kind kind, int64_t most_bytes) : form_(form), kind_(kind) {
  const int64_t element = dtype_size(form.dtype);
  const int64_t other = kind == Kind::kResult ? multiple(form.n, kAligned) : multiple(form.k, kAligned);
  const int64_t parts = std::max<int64_t>(1, (other * form.m * element + most_bytes - 1) / most_bytes);
  part_ = std::min(form.m, multiple((form.m + parts - 1) / parts, 128));
  line_ = kind == Kind::kColumns ? multiple(part_, kAligned) : other;
  whole_ = std::make_unique<LibraryProduct>(part_of(part_));
  if (form.m % part_ != 0) last_ = std::make_unique<LibraryProduct>(part_of(form.m % part_));
}

ProductForm AlignedProduct::part_of(int64_t rows) const {
  ProductForm part = form_;
  part.m = rows;
  (kind_ == Kind::kResult ? part.y_line : part.a_line) = line_;
  return part;
}

int64_t AlignedProduct::scratch_bytes() const {
  const int64_t lines = kind_ == Kind::kColumns ? form_.k : part_;
  return multiple(lines * line_ * dtype_size(form_.dtype), 256) +
         std::max(whole_->workspace_bytes(), last_ == nullptr ? 0 : last_->workspace_bytes());
}

bool AlignedProduct::run(Stream& stream, const void* a, const void* b, const void* bias, void* y, void* scratch) const {
  const int64_t element = dtype_size(form_.dtype), lines = kind_ == Kind::kColumns ? form_.k : part_;
  auto* workspace = static_cast<std::byte*>(scratch) + multiple(lines * line_ * element, 256);
  const auto* a_bytes = static_cast<const std::byte*>(a);
  auto* y_bytes = static_cast<std::byte*>(y);
  for (int64_t row = 0; row < form_.m; row += part_) {
    const int64_t rows = std::min(part_, form_.m - row);
    const LibraryProduct& product = rows == part_ ? *whole_ : *last_;
    std::byte* y_part = y_bytes + row * form_.n * element;
    if (kind_ == Kind::kResult) {
      if (!product.run(stream, a_bytes + row * form_.k * element, b, bias, scratch, workspace)) return false;
      copy_lines(stream, scratch, line_, y_part, form_.n, rows, form_.n);
    } else {
      if (kind_ == Kind::kRows) copy_lines(stream, a_bytes + row * form_.k * element, form_.k, scratch, line_, rows, form_.k);
      if (kind_ == Kind::kColumns) copy_lines(stream, a_bytes + row * element, form_.m, scratch, line_, form_.k, rows);
      if (!product.run(stream, scratch, b, bias, y_part, workspace)) return false;
    }
  }
  return true;
}

}  // namespace galley
