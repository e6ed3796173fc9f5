// Rows of a table picked by indices, and their gradient: added in the order of the indices, whatever the threads. Copies and sums of rows
// at random places of a large table are bound by memory, so they are plain loops for the baseline of the processor.

#include "libcore/ops/embedding.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/cpu/strided_copy.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

template <class T>
int64_t row_at(const void* index, int64_t i) {
  return static_cast<int64_t>(static_cast<const T*>(index)[i]);
}
using RowAt = int64_t (*)(const void* index, int64_t i);

RowAt reader_of(DType dtype) {
  switch (dtype) {
    case DType::kI64: return row_at<int64_t>;
    case DType::kI32: return row_at<int32_t>;
    default: return nullptr;
  }
}

/// Indices are data: a bad one is the input's mistake.
int64_t checked(int64_t row, int64_t rows) {
  GALLEY_CHECK_INPUT(row >= 0 && row < rows, "[embedding] index ", row, " is outside the table of ", rows, " rows");
  return row;
}

class Embedding : public PreparedKernel {
 public:
  explicit Embedding(const KernelQuery& q)
      : read_(reader_of(q.in(1).dtype)),
        count_(q.in(1).elements()),
        rows_(q.in(0).shape[0]),
        row_bytes_(q.in(0).shape[1] * dtype_size(q.in(0).dtype)) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_bytes_)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        copy_run(args.out<std::byte>(0) + i * row_bytes_, args.in<std::byte>(0) + checked(read_(args.inputs[1], i), rows_) * row_bytes_,
                 row_bytes_);
    });
  }

 private:
  RowAt read_;
  int64_t count_, rows_, row_bytes_;
};

void add_to(const float* grad, float* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += grad[i];
}

/// Threads divide the columns, so that no two add to the same value and every sum keeps its order.
class EmbeddingBackward : public PreparedKernel {
 public:
  explicit EmbeddingBackward(const KernelQuery& q)
      : read_(reader_of(q.in(1).dtype)), count_(q.in(1).elements()), rows_(q.out(0).shape[0]), width_(q.out(0).shape[1]) {}
  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kColumns = 16;  // a cache line
    auto* sum = args.out<float>(0);
    parallel_for((width_ + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kColumns, columns = std::min(width_, end * kColumns) - first;
      for (int64_t row = 0; row < rows_; ++row) std::memset(sum + row * width_ + first, 0, static_cast<size_t>(columns) * 4);
      for (int64_t i = 0; i < count_; ++i) {
        add_to(args.in<float>(0) + i * width_ + first, sum + checked(read_(args.inputs[1], i), rows_) * width_ + first, columns);
      }
    });
  }

 private:
  RowAt read_;
  int64_t count_, rows_, width_;
};

Support supports(const KernelQuery& q) {
  if (reader_of(q.in(1).dtype) == nullptr) return Support::no(cat("index dtype ", q.in(1).dtype));
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  return Support::yes();
}
Support supports_backward(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{{{"embedding", "row_copies", supports, prepare<Embedding>},
                                      {"embedding_backward", "ordered_sums", supports_backward, prepare<EmbeddingBackward>}}};

}  // namespace

std::span<const Kernel> cpu_embedding() { return kKernels; }

}  // namespace galley
