// Conversion between all dtypes, over arrays in the order of their memory: rounded to nearest even; to integers toward zero, saturating,
// NaN as 0; to f8_e4m3 saturating, NaN as NaN. One pass, bound by memory. The pairs of mixed precision and of images are compiled for each
// instruction set, the others for the baseline alone.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/cast.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace galley::cast_loops {
namespace HWY_NAMESPACE {

void float_to_bf16(const void* from, void* to, int64_t begin, int64_t end) {
  const auto* in = static_cast<const float*>(from);
  auto* out = static_cast<BFloat16*>(to);
  for (int64_t i = begin; i < end; ++i) out[i] = in[i];
}
void bf16_to_float(const void* from, void* to, int64_t begin, int64_t end) {
  const auto* in = static_cast<const BFloat16*>(from);
  auto* out = static_cast<float*>(to);
  for (int64_t i = begin; i < end; ++i) out[i] = in[i];
}
void bytes_to_float(const void* from, void* to, int64_t begin, int64_t end) {
  const auto* in = static_cast<const uint8_t*>(from);
  auto* out = static_cast<float*>(to);
  for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(in[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::cast_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace cast_loops {

HWY_EXPORT(float_to_bf16);
HWY_EXPORT(bf16_to_float);
HWY_EXPORT(bytes_to_float);

}  // namespace cast_loops

namespace {

// The C++ types of a dtype: of its values in memory, and of the numbers computed with.
template <class T>
struct Plain {
  using Stored = T;
  using Number = T;
  static GALLEY_INLINE T load(T stored) { return stored; }
};
struct Brain {
  using Stored = uint16_t;
  using Number = float;
  static GALLEY_INLINE float load(uint16_t stored) { return float_from_bf16(stored); }
};
struct Float16 {
  using Stored = uint16_t;
  using Number = float;
  static GALLEY_INLINE float load(uint16_t stored) { return float_from_f16(stored); }
};
struct Float8 {
  using Stored = uint8_t;
  using Number = float;
  static GALLEY_INLINE float load(uint8_t stored) { return float_from_f8(stored); }
};
struct Bool {
  using Stored = uint8_t;
  using Number = uint8_t;
  static GALLEY_INLINE uint8_t load(uint8_t stored) { return stored; }
};

template <class Integer, class Number>
GALLEY_INLINE Integer to_integer(Number x) {
  using Limits = std::numeric_limits<Integer>;
  if constexpr (std::is_floating_point_v<Number>) {
    // The largest integer may round up to one that does not fit: from there on it is the result.
    constexpr auto kLow = static_cast<Number>(Limits::min()), kHigh = static_cast<Number>(Limits::max());
    const Number number = x != x ? Number{0} : x;
    return number >= kHigh ? Limits::max() : number <= kLow ? Limits::min() : static_cast<Integer>(number);
  } else {
    return std::cmp_greater(x, Limits::max()) ? Limits::max() : std::cmp_less(x, Limits::min()) ? Limits::min() : static_cast<Integer>(x);
  }
}

template <class To, class Number>
GALLEY_INLINE typename To::Stored store(Number x) {
  if constexpr (std::is_same_v<To, Bool>) {
    return x != Number{0} ? 1 : 0;
  } else if constexpr (std::is_same_v<To, Brain>) {
    return bf16_from_float(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return f16_from_float(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Float8>) {
    return f8_from_float(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<typename To::Stored>) {
    return static_cast<typename To::Stored>(x);
  } else {
    return to_integer<typename To::Stored>(x);
  }
}

template <class From, class To>
void convert(const void* from, void* to, int64_t begin, int64_t end) {
  const auto* in = static_cast<const typename From::Stored*>(from);
  auto* out = static_cast<typename To::Stored*>(to);
  for (int64_t i = begin; i < end; ++i) out[i] = store<To>(From::load(in[i]));
}

void float_to_bf16(const void* from, void* to, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(cast_loops::float_to_bf16)(from, to, begin, end);
}
void bf16_to_float(const void* from, void* to, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(cast_loops::bf16_to_float)(from, to, begin, end);
}
void bytes_to_float(const void* from, void* to, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(cast_loops::bytes_to_float)(from, to, begin, end);
}

using Loop = void (*)(const void* from, void* to, int64_t begin, int64_t end);

template <class From>
Loop loop_to(DType to) {
  switch (to) {
    case DType::kF32: return convert<From, Plain<float>>;
    case DType::kF64: return convert<From, Plain<double>>;
    case DType::kF16: return convert<From, Float16>;
    case DType::kBF16: return convert<From, Brain>;
    case DType::kI64: return convert<From, Plain<int64_t>>;
    case DType::kI32: return convert<From, Plain<int32_t>>;
    case DType::kI16: return convert<From, Plain<int16_t>>;
    case DType::kI8: return convert<From, Plain<int8_t>>;
    case DType::kU8: return convert<From, Plain<uint8_t>>;
    case DType::kBool: return convert<From, Bool>;
    case DType::kF8E4M3: return convert<From, Float8>;
  }
  GALLEY_ASSERT(false);
}

Loop loop_of(DType from, DType to) {
  if (from == DType::kF32 && to == DType::kBF16) return float_to_bf16;
  if (from == DType::kBF16 && to == DType::kF32) return bf16_to_float;
  if ((from == DType::kU8 || from == DType::kBool) && to == DType::kF32) return bytes_to_float;
  switch (from) {
    case DType::kF32: return loop_to<Plain<float>>(to);
    case DType::kF64: return loop_to<Plain<double>>(to);
    case DType::kF16: return loop_to<Float16>(to);
    case DType::kBF16: return loop_to<Brain>(to);
    case DType::kI64: return loop_to<Plain<int64_t>>(to);
    case DType::kI32: return loop_to<Plain<int32_t>>(to);
    case DType::kI16: return loop_to<Plain<int16_t>>(to);
    case DType::kI8: return loop_to<Plain<int8_t>>(to);
    case DType::kU8: return loop_to<Plain<uint8_t>>(to);
    case DType::kBool: return loop_to<Bool>(to);
    case DType::kF8E4M3: return loop_to<Float8>(to);
  }
  GALLEY_ASSERT(false);
}

class Cast : public PreparedKernel {
 public:
  explicit Cast(const KernelQuery& q)
      : loop_(loop_of(q.in(0).dtype, q.out(0).dtype)), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, 16384, [&](int64_t begin, int64_t end) { loop_(args.inputs[0], args.outputs[0], begin, end); });
  }

 private:
  Loop loop_;
  int64_t count_;
};

Support supports(const KernelQuery& q) {
  if (!(q.in(0).format == q.out(0).format)) return Support::no("output in another format");
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{
    {{"cast", "one_pass", supports, [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<Cast>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_cast() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
