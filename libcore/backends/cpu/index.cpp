// Elements picked and placed by indices, counted positions, random words and assigned states: plain loops. No model's step runs them, as
// the composites that are made of them have kernels of their own.

#include "libcore/ops/index.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/axis_view.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/random.h"
#include "libcore/ops/random_mask.h"
#include "libcore/ops/rules.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

constexpr int64_t kGrain = 4096;  // elements of a task: a few microseconds

template <class Index>
int64_t checked(std::string_view op, Index index, int64_t size) {
  GALLEY_CHECK_INPUT(index >= 0 && index < size, "[", op, "] index ", index, " is outside of 0..", size - 1);
  return static_cast<int64_t>(index);
}

template <class T, class Index>
class Gather : public PreparedKernel {
 public:
  explicit Gather(const KernelQuery& q)
      : axis_(axis_of(q.attrs<GatherAttrs>().axis, q.in(0))), x_(q.in(0).shape, axis_), y_(q.out(0).shape, axis_) {}
  void run(Stream&, const KernelArgs& args) const override {
    const T* x = args.in<T>(0);
    const Index* index = args.in<Index>(1);
    T* y = args.out<T>(0);
    parallel_for(y_.outer * y_.size * y_.inner, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at)
        y[at] = x[x_.at(at / (y_.size * y_.inner), checked("gather", index[at], x_.size), at % y_.inner)];
    });
  }

 private:
  int axis_;
  AxisView x_, y_;
};

/// Each task takes lines of its own along the axis, so that no two add to one place and every sum keeps its order.
template <class T, class Index>
class ScatterAdd : public PreparedKernel {
 public:
  explicit ScatterAdd(const KernelQuery& q)
      : axis_(axis_of(q.attrs<ScatterAddAttrs>().axis, q.in(0))), x_(q.in(0).shape, axis_), y_(q.out(0).shape, axis_) {}
  void run(Stream&, const KernelArgs& args) const override {
    const T* x = args.in<T>(0);
    const Index* index = args.in<Index>(1);
    T* y = args.out<T>(0);
    parallel_for(y_.outer * y_.inner, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x_.size + y_.size)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t line = begin; line < end; ++line) {
                     const int64_t o = line / y_.inner, i = line % y_.inner;
                     for (int64_t s = 0; s < y_.size; ++s) y[y_.at(o, s, i)] = T(0);
                     for (int64_t s = 0; s < x_.size; ++s)
                       y[y_.at(o, checked("scatter_add", index[x_.at(o, s, i)], y_.size), i)] += x[x_.at(o, s, i)];
                   }
                 });
  }

 private:
  int axis_;
  AxisView x_, y_;
};

template <class T, class Index>
class OneHot : public PreparedKernel {
 public:
  explicit OneHot(const KernelQuery& q) : y_(q.out(0).shape, axis_of(q.attrs<OneHotAttrs>().axis, q.out(0))) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Index* index = args.in<Index>(0);
    T* y = args.out<T>(0);
    const int64_t block = y_.size * y_.inner;
    parallel_for(y_.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, block)), [&](int64_t begin, int64_t end) {
      std::fill(y + begin * block, y + end * block, T(0));
      for (int64_t at = begin * y_.inner; at < end * y_.inner; ++at)
        y[y_.at(at / y_.inner, checked("one_hot", index[at], y_.size), at % y_.inner)] = T(1);
    });
  }

 private:
  AxisView y_;
};

template <class T>
class Iota : public PreparedKernel {
 public:
  explicit Iota(const KernelQuery& q) : y_(q.out(0).shape, axis_of(q.attrs<IotaAttrs>().axis, q.out(0))) {}
  void run(Stream&, const KernelArgs& args) const override {
    T* y = args.out<T>(0);
    parallel_for(y_.outer * y_.size * y_.inner, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(i / y_.inner % y_.size);
    });
  }

 private:
  AxisView y_;
};

class RandomBits : public PreparedKernel {
 public:
  explicit RandomBits(const KernelQuery& q)
      : attrs_(q.attrs<RandomBitsAttrs>()), elements_(q.out(0).elements()), samples_(attrs_.whole_batch ? 1 : q.out(0).shape[0]) {}
  void run(Stream&, const KernelArgs& args) const override {
    if (elements_ == 0) return;
    const auto* rng = args.in<int64_t>(0);
    const uint64_t key = mask_key(rng[0], attrs_.stream, rng[1]);
    const int64_t each = elements_ / samples_;
    parallel_for(elements_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t sample = attrs_.whole_batch ? kWholeBatch : static_cast<uint64_t>(rng[2] + i / each),
                       element = static_cast<uint64_t>(i % each);
        args.out<int64_t>(0)[i] = mask_block(key, sample, element / 4)[element % 4];
      }
    });
  }

 private:
  RandomBitsAttrs attrs_;
  int64_t elements_, samples_;
};

class Assign : public PreparedKernel {
 public:
  explicit Assign(const KernelQuery& q) : bytes_(q.out(0).bytes()) {}
  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kBytes = 65536;
    parallel_for((bytes_ + kBytes - 1) / kBytes, 1, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kBytes, last = std::min(bytes_, end * kBytes);
      std::memcpy(args.out<std::byte>(0) + first, args.in<std::byte>(1) + first, static_cast<size_t>(last - first));
    });
  }

 private:
  int64_t bytes_;
};

template <template <class, class> class Operator, class T>
std::unique_ptr<PreparedKernel> with_index(const KernelQuery& q, DType index) {
  if (index == DType::kI32) return std::make_unique<Operator<T, int32_t>>(q);
  return std::make_unique<Operator<T, int64_t>>(q);
}

/// For operators that compute: the types in which they do.
bool counts(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64 || dtype == DType::kI32; }
template <template <class, class> class Operator>
std::unique_ptr<PreparedKernel> with_number(const KernelQuery& q, DType number, DType index) {
  switch (number) {
    case DType::kF32: return with_index<Operator, float>(q, index);
    case DType::kF64: return with_index<Operator, double>(q, index);
    case DType::kI32: return with_index<Operator, int32_t>(q, index);
    default: return with_index<Operator, int64_t>(q, index);
  }
}

/// Elements are moved, whatever they mean.
std::unique_ptr<PreparedKernel> prepare_gather(const KernelQuery& q) {
  switch (dtype_size(q.in(0).dtype)) {
    case 1: return with_index<Gather, uint8_t>(q, q.in(1).dtype);
    case 2: return with_index<Gather, uint16_t>(q, q.in(1).dtype);
    case 4: return with_index<Gather, uint32_t>(q, q.in(1).dtype);
    default: return with_index<Gather, uint64_t>(q, q.in(1).dtype);
  }
}
std::unique_ptr<PreparedKernel> prepare_scatter_add(const KernelQuery& q) {
  return with_number<ScatterAdd>(q, q.in(0).dtype, q.in(1).dtype);
}
std::unique_ptr<PreparedKernel> prepare_one_hot(const KernelQuery& q) { return with_number<OneHot>(q, q.out(0).dtype, q.in(0).dtype); }
std::unique_ptr<PreparedKernel> prepare_iota(const KernelQuery& q) {
  switch (q.out(0).dtype) {
    case DType::kF32: return std::make_unique<Iota<float>>(q);
    case DType::kF64: return std::make_unique<Iota<double>>(q);
    case DType::kI32: return std::make_unique<Iota<int32_t>>(q);
    default: return std::make_unique<Iota<int64_t>>(q);
  }
}

/// Contiguous operands.
Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  return q.out(0).format.is_contiguous() ? Support::yes() : Support::no(cat("format ", q.out(0).format));
}
Support supports_numbers(const KernelQuery& q) { return counts(q.out(0).dtype) ? supports(q) : Support::no(cat("dtype ", q.out(0).dtype)); }
Support supports_assign(const KernelQuery& q) {
  return q.in(0).format == q.in(1).format && q.out(0).format == q.in(1).format ? Support::yes()
                                                                               : Support::no("the formats of state and value differ");
}

const std::array<Kernel, 6> kKernels{
    {{"gather", "gathers", supports, prepare_gather},
     {"scatter_add", "owned_lines", supports_numbers, prepare_scatter_add},
     {"one_hot", "elements", supports_numbers, prepare_one_hot},
     {"iota", "elements", supports_numbers, prepare_iota},
     {"random_bits", "philox", supports,
      [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<RandomBits>(q); }},
     {"assign", "copy", supports_assign,
      [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<Assign>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_index() { return kKernels; }

}  // namespace galley
