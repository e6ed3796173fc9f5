// Comparisons and selection with broadcasting, of any dtype: the formulas of ops/elementwise_functions.h over the rows that broadcasting
// leaves. One pass, bound by memory. Floats and words of 32 bits are compiled for each instruction set, other dtypes for the baseline
// alone.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/select.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <array>
#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/backends/cpu/broadcast_walk.h"
#include "libcore/ops/scalar.h"

#ifndef GALLEY_SELECT_ONCE
#define GALLEY_SELECT_ONCE

namespace galley::select_loops {

using Steps = BroadcastWalk<3>::Steps;

template <class T, class Compare>
GALLEY_INLINE void compare(const std::array<const void*, 3>& operands, const Steps& steps, void* out, int64_t count, Compare holds) {
  const auto* a = static_cast<const T*>(operands[0]);
  const auto* b = static_cast<const T*>(operands[1]);
  auto* y = static_cast<uint8_t*>(out);
  if (steps[0] == 1 && steps[1] == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = holds(a[i], b[i]);
  } else if (steps[0] == 1 && steps[1] == 0) {
    const T right = *b;
    for (int64_t i = 0; i < count; ++i) y[i] = holds(a[i], right);
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = holds(a[i * steps[0]], b[i * steps[1]]);
  }
}

template <class T>
GALLEY_INLINE void select(const std::array<const void*, 3>& operands, const Steps& steps, void* out, int64_t count) {
  const auto* condition = static_cast<const uint8_t*>(operands[0]);
  const auto* a = static_cast<const T*>(operands[1]);
  const auto* b = static_cast<const T*>(operands[2]);
  auto* y = static_cast<T*>(out);
  if (steps == Steps{1, 1, 1}) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) {
      const T left = a[i], right = b[i];
      y[i] = condition[i] != 0 ? left : right;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const T left = a[i * steps[1]], right = b[i * steps[2]];
      y[i] = condition[i * steps[0]] != 0 ? left : right;
    }
  }
}

constexpr auto kEqual = [](auto a, auto b) { return scalar::Equal::holds(a, b); };
constexpr auto kLess = [](auto a, auto b) { return scalar::Less::holds(a, b); };
constexpr auto kGreater = [](auto a, auto b) { return scalar::Greater::holds(a, b); };

}  // namespace galley::select_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::select_loops {
namespace HWY_NAMESPACE {

void equal_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  compare<float>(in, steps, out, n, kEqual);
}
void less_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  compare<float>(in, steps, out, n, kLess);
}
void greater_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  compare<float>(in, steps, out, n, kGreater);
}
void select_words(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { select<uint32_t>(in, steps, out, n); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::select_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "libcore/backends/cpu/table.h"
#include "libcore/ops/binary.h"

namespace galley {
namespace select_loops {

HWY_EXPORT(equal_floats);
HWY_EXPORT(less_floats);
HWY_EXPORT(greater_floats);
HWY_EXPORT(select_words);

}  // namespace select_loops

namespace {

using select_loops::compare;
using select_loops::kEqual;
using select_loops::kGreater;
using select_loops::kLess;
using select_loops::select;
using select_loops::Steps;

/// One row: operands where it begins, the steps between their elements, and the output.
using Loop = void (*)(const std::array<const void*, 3>& operands, const Steps& steps, void* out, int64_t count);

void equal_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(select_loops::equal_floats)(in, steps, out, n);
}
void less_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(select_loops::less_floats)(in, steps, out, n);
}
void greater_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(select_loops::greater_floats)(in, steps, out, n);
}
void select_words(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(select_loops::select_words)(in, steps, out, n);
}

template <class T, auto kHolds>
void compare_of(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  compare<T>(in, steps, out, n, kHolds);
}
template <class T>
void select_of(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) {
  select<T>(in, steps, out, n);
}

/// nullptr: not for this dtype.
template <auto kHolds>
Loop comparison_of(DType dtype, Loop floats) {
  switch (dtype) {
    case DType::kF32: return floats;
    case DType::kBF16: return compare_of<BFloat16, kHolds>;
    case DType::kF64: return compare_of<double, kHolds>;
    case DType::kI64: return compare_of<int64_t, kHolds>;
    case DType::kI32: return compare_of<int32_t, kHolds>;
    case DType::kI16: return compare_of<int16_t, kHolds>;
    case DType::kI8: return compare_of<int8_t, kHolds>;
    case DType::kU8:
    case DType::kBool: return compare_of<uint8_t, kHolds>;
    default: return nullptr;
  }
}

Loop selection_of(DType dtype) {
  switch (dtype_size(dtype)) {
    case 1: return select_of<uint8_t>;
    case 2: return select_of<uint16_t>;
    case 4: return select_words;
    default: return select_of<uint64_t>;
  }
}

class Broadcast : public PreparedKernel {
 public:
  Broadcast(Loop loop, const KernelQuery& q)
      : walk_(q.context.inputs, q.out(0)), loop_(loop), operands_(q.context.inputs.size()), out_element_(dtype_size(q.out(0).dtype)) {
    for (size_t o = 0; o < operands_; ++o) element_[o] = dtype_size(q.context.inputs[o]->dtype);
  }
  void run(Stream&, const KernelArgs& args) const override {
    walk_.run([&](const Steps& at, int64_t out_at, int64_t count) {
      std::array<const void*, 3> in{};
      for (size_t o = 0; o < operands_; ++o) in[o] = args.in<std::byte>(o) + at[o] * element_[o];
      loop_(in, walk_.steps(), args.out<std::byte>(0) + out_at * out_element_, count);
    });
  }

 private:
  BroadcastWalk<3> walk_;
  Loop loop_;
  size_t operands_;
  std::array<int64_t, 3> element_{};
  int64_t out_element_;
};

Support supports_formats(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (q.out(0).format.is_blocked()) return Support::no(cat("format ", q.out(0).format));
  return Support::yes();
}

template <auto kHolds>
Support supports_comparison(const KernelQuery& q) {
  if (comparison_of<kHolds>(q.in(0).dtype, equal_floats) == nullptr) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports_formats(q);
}
template <auto kHolds, Loop kFloats>
std::unique_ptr<PreparedKernel> prepare_comparison(const KernelQuery& q) {
  return std::make_unique<Broadcast>(comparison_of<kHolds>(q.in(0).dtype, kFloats), q);
}
std::unique_ptr<PreparedKernel> prepare_where(const KernelQuery& q) { return std::make_unique<Broadcast>(selection_of(q.out(0).dtype), q); }

const std::array<Kernel, 4> kKernels{
    {{"equal", "broadcast_rows", supports_comparison<kEqual>, prepare_comparison<kEqual, equal_floats>},
     {"less", "broadcast_rows", supports_comparison<kLess>, prepare_comparison<kLess, less_floats>},
     {"greater", "broadcast_rows", supports_comparison<kGreater>, prepare_comparison<kGreater, greater_floats>},
     {"where", "broadcast_rows", supports_formats, prepare_where}}};

}  // namespace

std::span<const Kernel> cpu_select() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
