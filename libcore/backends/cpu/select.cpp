// Comparisons and selection with broadcasting, of any dtype. Operands become steps over the output's memory order (0 where broadcast),
// neighbouring dimensions that walk alike are joined, and the innermost runs as a loop.

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/binary.h"

namespace galley {
namespace {

using Steps = std::array<int64_t, 3>;  // in elements, of each operand

struct Walk {
  int64_t size = 1;
  Steps steps{};
};

/// One row: operands where it begins, the steps between their elements, and the output.
using Loop = void (*)(const std::array<const void*, 3>& operands, const Steps& steps, void* out, int64_t count);

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

constexpr auto kEqual = [](auto a, auto b) { return a == b; };
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kGreater = [](auto a, auto b) { return a > b; };

GALLEY_CLONES void equal_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { compare<float>(in, steps, out, n, kEqual); }
GALLEY_CLONES void less_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { compare<float>(in, steps, out, n, kLess); }
GALLEY_CLONES void greater_floats(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { compare<float>(in, steps, out, n, kGreater); }
GALLEY_CLONES void select_words(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { select<uint32_t>(in, steps, out, n); }

template <class T, auto kHolds>
void compare_of(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { compare<T>(in, steps, out, n, kHolds); }
template <class T>
void select_of(const std::array<const void*, 3>& in, const Steps& steps, void* out, int64_t n) { select<T>(in, steps, out, n); }

/// nullptr: not for this dtype.
template <auto kHolds>
Loop comparison_of(DType dtype, Loop floats) {
  switch (dtype) {
    case DType::kF32: return floats;
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
  Broadcast(Loop loop, const KernelQuery& q) : loop_(loop), operands_(q.context.inputs.size()) {
    const TensorType& out = q.out(0);
    for (size_t o = 0; o < operands_; ++o) element_[o] = dtype_size(q.context.inputs[o]->dtype);
    out_element_ = dtype_size(out.dtype);
    std::array<Shape, 3> own;
    for (size_t o = 0; o < operands_; ++o) own[o] = q.context.inputs[o]->format.strides(q.context.inputs[o]->shape);
    for (const int d : out.format.order(out.shape.rank())) {
      Walk next{out.shape[d], {}};
      if (next.size == 1) continue;
      bool joins = !walks_.empty();
      for (size_t o = 0; o < operands_; ++o) {
        const Shape& shape = q.context.inputs[o]->shape;
        const int at = d - (out.shape.rank() - shape.rank());
        next.steps[o] = at < 0 || shape[at] == 1 ? 0 : own[o][at];
        joins = joins && walks_.back().steps[o] == next.steps[o] * next.size;
      }
      if (joins) {
        walks_.back() = {walks_.back().size * next.size, next.steps};
      } else {
        walks_.push_back(next);
      }
    }
    if (walks_.empty()) walks_.push_back({});
    inner_ = walks_.back();
    walks_.pop_back();
    for (const Walk& walk : walks_) rows_ *= walk.size;
  }
  void run(Stream&, const KernelArgs& args) const override {
    const auto piece = [&](int64_t row, int64_t begin, int64_t end) {
      std::array<const void*, 3> in{};
      Steps at{};
      int64_t rest = row;
      for (auto walk = walks_.rbegin(); walk != walks_.rend(); ++walk) {
        for (size_t o = 0; o < operands_; ++o) at[o] += rest % walk->size * walk->steps[o];
        rest /= walk->size;
      }
      for (size_t o = 0; o < operands_; ++o) in[o] = args.in<std::byte>(o) + (at[o] + begin * inner_.steps[o]) * element_[o];
      loop_(in, inner_.steps, args.out<std::byte>(0) + (row * inner_.size + begin) * out_element_, end - begin);
    };
    if (rows_ == 1) {
      parallel_for(inner_.size, 16384, [&](int64_t begin, int64_t end) { piece(0, begin, end); });
      return;
    }
    parallel_for(rows_, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, inner_.size)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) piece(row, 0, inner_.size);
    });
  }

 private:
  Loop loop_;
  size_t operands_;
  std::array<int64_t, 3> element_{};
  int64_t out_element_ = 1, rows_ = 1;
  std::vector<Walk> walks_;
  Walk inner_;
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

const std::array<Kernel, 4> kKernels{{{"equal", "cpu", supports_comparison<kEqual>, prepare_comparison<kEqual, equal_floats>},
                                      {"less", "cpu", supports_comparison<kLess>, prepare_comparison<kLess, less_floats>},
                                      {"greater", "cpu", supports_comparison<kGreater>, prepare_comparison<kGreater, greater_floats>},
                                      {"where", "cpu", supports_formats, prepare_where}}};

}  // namespace

std::span<const Kernel> cpu_select() { return kKernels; }

}  // namespace galley
