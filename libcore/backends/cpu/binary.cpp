// Binary element-wise operators with broadcasting. Both sides become strides over the output's memory order (0 where broadcast), neighbouring
// dimensions that walk alike are joined, and the innermost runs as a loop that the compiler vectorises.

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/binary.h"

namespace galley {
namespace {

/// out[i] = f(a[i * a_step], b[i * b_step]).
template <class T>
using Loop = void (*)(const T* a, int64_t a_step, const T* b, int64_t b_step, T* out, int64_t count);
/// An operator's loops over either type.
struct Loops {
  Loop<float> wide;
  Loop<BFloat16> narrow;
};

#define GALLEY_BINARY(name, expression)                                                                                                                   \
  template <class T>                                                                                                                                      \
  GALLEY_INLINE void name##_as(const T* a, int64_t a_step, const T* b, int64_t b_step, T* out, int64_t count) {                                           \
    if (a_step == 1 && b_step == 1) {                                                                                                                     \
      GALLEY_ELEMENTWISE                                                                                                                                  \
      for (int64_t i = 0; i < count; ++i) { const float x = a[i], y = b[i]; out[i] = (expression); }                                                      \
    } else if (a_step == 1 && b_step == 0) {                                                                                                              \
      const float y = *b;                                                                                                                                 \
      GALLEY_ELEMENTWISE                                                                                                                                  \
      for (int64_t i = 0; i < count; ++i) { const float x = a[i]; out[i] = (expression); }                                                                \
    } else if (a_step == 0 && b_step == 1) {                                                                                                              \
      const float x = *a;                                                                                                                                 \
      GALLEY_ELEMENTWISE                                                                                                                                  \
      for (int64_t i = 0; i < count; ++i) { const float y = b[i]; out[i] = (expression); }                                                                \
    } else {                                                                                                                                              \
      for (int64_t i = 0; i < count; ++i) { const float x = a[i * a_step], y = b[i * b_step]; out[i] = (expression); }                                    \
    }                                                                                                                                                     \
  }                                                                                                                                                       \
  GALLEY_CLONES void name##_loop(const float* a, int64_t a_step, const float* b, int64_t b_step, float* out, int64_t count) { name##_as(a, a_step, b, b_step, out, count); } \
  GALLEY_CLONES void name##_loop(const BFloat16* a, int64_t a_step, const BFloat16* b, int64_t b_step, BFloat16* out, int64_t count) { name##_as(a, a_step, b, b_step, out, count); } \
  constexpr Loops name{name##_loop, name##_loop};

GALLEY_BINARY(add_loops, x + y)
GALLEY_BINARY(sub_loops, x - y)
GALLEY_BINARY(mul_loops, x * y)
GALLEY_BINARY(div_loops, x / y)
// A NaN on either side is the result.
GALLEY_BINARY(maximum_loops, x != x ? x : x > y ? x : y)
GALLEY_BINARY(minimum_loops, x != x ? x : x < y ? x : y)

// The library's, an element at a time: rare, and with all its special cases.
GALLEY_BINARY(power_loops, std::pow(x, y))

struct Walk {
  int64_t size = 1, a = 0, b = 0;
};

/// Element strides of an operand over the output's dimensions, right-aligned; 0 where it is broadcast.
Shape steps_of(const TensorType& type, const Shape& out) {
  Shape steps = out;
  const Shape own = type.format.strides(type.shape);
  const int missing = out.rank() - type.shape.rank();
  for (int d = 0; d < out.rank(); ++d) steps[d] = d < missing || type.shape[d - missing] == 1 ? 0 : own[d - missing];
  return steps;
}

template <class T>
class Binary : public PreparedKernel {
 public:
  Binary(Loop<T> loop, const TensorType& a, const TensorType& b, const TensorType& out) : loop_(loop) {
    const Shape a_steps = steps_of(a, out.shape), b_steps = steps_of(b, out.shape);
    for (const int d : out.format.order(out.shape.rank())) {
      const Walk next{out.shape[d], a_steps[d], b_steps[d]};
      if (next.size == 1) continue;
      if (!walks_.empty() && walks_.back().a == next.a * next.size && walks_.back().b == next.b * next.size) {
        walks_.back() = {walks_.back().size * next.size, next.a, next.b};
      } else {
        walks_.push_back(next);
      }
    }
    if (walks_.empty()) walks_.push_back({1, 0, 0});
    inner_ = walks_.back();
    walks_.pop_back();
    for (const Walk& walk : walks_) rows_ *= walk.size;
  }
  void run(Stream&, const KernelArgs& args) const override {
    const T* a = args.in<T>(0);
    const T* b = args.in<T>(1);
    T* out = args.out<T>(0);
    if (rows_ == 1) {
      parallel_for(inner_.size, 16384, [&](int64_t begin, int64_t end) { loop_(a + begin * inner_.a, inner_.a, b + begin * inner_.b, inner_.b, out + begin, end - begin); });
      return;
    }
    parallel_for(rows_, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, inner_.size)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t rest = row, a_at = 0, b_at = 0;
        for (auto walk = walks_.rbegin(); walk != walks_.rend(); ++walk) {
          const int64_t i = rest % walk->size;
          rest /= walk->size;
          a_at += i * walk->a;
          b_at += i * walk->b;
        }
        loop_(a + a_at, inner_.a, b + b_at, inner_.b, out + row * inner_.size, inner_.size);
      }
    });
  }

 private:
  Loop<T> loop_;
  std::vector<Walk> walks_;
  Walk inner_;
  int64_t rows_ = 1;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->dtype != q.out(0).dtype || (type->dtype != DType::kF32 && type->dtype != DType::kBF16)) return Support::no(cat("dtype ", type->dtype));
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

template <const Loops& kLoops>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.out(0).dtype == DType::kBF16) return std::make_unique<Binary<BFloat16>>(kLoops.narrow, q.in(0), q.in(1), q.out(0));
  return std::make_unique<Binary<float>>(kLoops.wide, q.in(0), q.in(1), q.out(0));
}

const std::array<Kernel, 7> kKernels{{{"add", "cpu", supports, prepare<add_loops>},
                                      {"sub", "cpu", supports, prepare<sub_loops>},
                                      {"mul", "cpu", supports, prepare<mul_loops>},
                                      {"div", "cpu", supports, prepare<div_loops>},
                                      {"maximum", "cpu", supports, prepare<maximum_loops>},
                                      {"minimum", "cpu", supports, prepare<minimum_loops>},
                                      {"power", "cpu", supports, prepare<power_loops>}}};

}  // namespace

std::span<const Kernel> cpu_binary() { return kKernels; }

}  // namespace galley
