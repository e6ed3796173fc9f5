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
                                   .to_line = to_line,
                                   .pad = to_line - columns < kAligned};
  launch_elements(stream, "copy_lines", rows * device::kThreads, call);
}

}  // namespace

std::unique_ptr<AlignedProduct> AlignedProduct::of(const ProductForm& form, const Limits& limits) {
  const double operations = 2.0 * static_cast<double>(form.m) * static_cast<double>(form.n) * static_cast<double>(form.k);
  if ((form.dtype != DType::kBF16 && form.dtype != DType::kF16) || form.batch != 1 || operations < limits.least_operations) return nullptr;
  const bool a = is_aligned(form.a_transposed ? form.m : form.k), b = is_aligned(form.b_transposed ? form.k : form.n);
  const bool y = is_aligned(form.n);
  const auto make = [&](Kind kind) { return std::unique_ptr<AlignedProduct>(new AlignedProduct(form, kind, limits.most_bytes)); };
  // b has whole lines for what is added to n or k.
  if (a && b && !y && form.b_transposed && !form.bias) return make(Kind::kResult);
  if (!a && b && y && !form.a_transposed && !form.b_transposed) return make(Kind::kRows);
  if (!a && b && y && form.a_transposed && !form.bias) return make(Kind::kColumns);
  return nullptr;
}

AlignedProduct::AlignedProduct(const ProductForm& form, Kind kind, int64_t most_bytes) : form_(form), kind_(kind) {
  const int64_t other = multiple(kind == Kind::kResult ? form.n : form.k, kAligned);
  const int64_t parts = std::max<int64_t>(1, (other * form.m * dtype_size(form.dtype) + most_bytes - 1) / most_bytes);
  const int64_t part = multiple((form.m + parts - 1) / parts, 128);
  line_ = kind == Kind::kColumns ? part : other;
  lines_ = kind == Kind::kColumns ? form.k : std::min(part, form.m);
  if (kind != Kind::kColumns) b_elements_ = other * (kind == Kind::kResult ? form.k : form.n);
  for (int64_t row = 0; row < form.m;) {
    int64_t rows = std::min(part, form.m - row);
    if (kind == Kind::kColumns && rows > kAligned) rows -= rows % kAligned;  // the columns of a part are aligned, but for a few
    parts_.push_back({row, rows, product_of(rows)});
    row += rows;
  }
}

const LibraryProduct* AlignedProduct::product_of(int64_t rows) {
  std::unique_ptr<LibraryProduct>& product = products_[rows];
  if (product == nullptr) {
    ProductForm part = form_;
    part.m = rows;
    if (kind_ == Kind::kResult) part.n = line_;
    if (kind_ == Kind::kRows) part.k = line_;
    if (kind_ == Kind::kColumns) part.a_line = line_;
    product = std::make_unique<LibraryProduct>(part);
  }
  return product.get();
}

int64_t AlignedProduct::scratch_bytes() const {
  int64_t workspace = 0;
  for (const auto& [rows, product] : products_) workspace = std::max(workspace, product->workspace_bytes());
  return multiple(lines_ * line_ * dtype_size(form_.dtype), 256) + multiple(b_elements_ * dtype_size(form_.dtype), 256) + workspace;
}

bool AlignedProduct::run(Stream& stream, const void* a, const void* b, const void* bias, void* y, void* scratch) const {
  const int64_t element = dtype_size(form_.dtype);
  auto* own_b = static_cast<std::byte*>(scratch) + multiple(lines_ * line_ * element, 256);
  auto* workspace = own_b + multiple(b_elements_ * element, 256);
  if (b_elements_ > 0) {
    const int64_t given = form_.n * form_.k * element;
    stream.copy(own_b, b, given);
    stream.fill(own_b + given, 0, b_elements_ * element - given);
    b = own_b;
  }
  const auto* a_bytes = static_cast<const std::byte*>(a);
  auto* y_bytes = static_cast<std::byte*>(y);
  for (const Part& part : parts_) {
    const std::byte* a_part = a_bytes + part.row * (kind_ == Kind::kColumns ? 1 : form_.k) * element;
    std::byte* y_part = y_bytes + part.row * form_.n * element;
    if (kind_ == Kind::kRows) copy_lines(stream, a_part, form_.k, scratch, line_, part.rows, form_.k);
    if (kind_ == Kind::kColumns) copy_lines(stream, a_part, form_.m, scratch, line_, form_.k, part.rows);
    const bool from_scratch = kind_ != Kind::kResult;
    if (!part.product->run(stream, from_scratch ? scratch : a_part, b, bias, from_scratch ? y_part : scratch, workspace)) return false;
    if (kind_ == Kind::kResult) copy_lines(stream, scratch, line_, y_part, form_.n, part.rows, form_.n);
  }
  return true;
}

}  // namespace galley
