// The loops of elementwise_loops.h: the formulas of ops/elementwise_functions.h on vectors of floats.

#include <hwy/detect_targets.h>
// Each target costs the build a copy of every function; processors with SSSE3 and without SSE4.1 are of 2006.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/elementwise_loops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/elementwise_loops.h"
#include "libcore/backends/cpu/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::elementwise {
namespace HWY_NAMESPACE {
using galley::HWY_NAMESPACE::load_floats;
using galley::HWY_NAMESPACE::store_floats;

#undef GALLEY_FUNCTION
#define GALLEY_FUNCTION GALLEY_INLINE
#include "libcore/ops/elementwise_functions.h"

template <class F>
concept HasSlope = requires { &F::template slope<Floats>; };
template <class F>
concept HasBackward = requires { &F::template backward<Floats>; };
template <class F>
concept IsComparison = requires { &F::template holds<Floats>; };

template <class T>
GALLEY_INLINE Floats load(const T* from) {
  return load_floats(D(), from);
}
template <class T>
GALLEY_INLINE void store(Floats x, T* to) {
  store_floats(x.v, D(), to);
}

/// What a loop computes of the two arrays' elements.
template <class F>
struct Value {
  static constexpr bool kReadsSecond = false;
  static GALLEY_INLINE Floats of(Floats x, Floats, LoopNumbers k) {
    if constexpr (F::numbers == 0) return F::value(x);
    if constexpr (F::numbers == 1) return F::value(x, Floats(k[0]));
    if constexpr (F::numbers == 2) return F::value(x, Floats(k[0]), Floats(k[1]));
  }
};
template <class F>
struct Backward {
  static constexpr bool kReadsSecond = true;
  static GALLEY_INLINE Floats of(Floats grad, Floats from, LoopNumbers k) {
    if constexpr (HasBackward<F>) {
      if constexpr (F::numbers == 0) return F::backward(grad, from, from);
      if constexpr (F::numbers == 1) return F::backward(grad, from, from, Floats(k[0]));
      if constexpr (F::numbers == 2) return F::backward(grad, from, from, Floats(k[0]), Floats(k[1]));
    } else {
      if constexpr (F::numbers == 0) return grad * F::slope(from, from);
      if constexpr (F::numbers == 1) return grad * F::slope(from, from, Floats(k[0]));
      if constexpr (F::numbers == 2) return grad * F::slope(from, from, Floats(k[0]), Floats(k[1]));
    }
  }
};
template <class F>
struct Two {
  static constexpr bool kReadsSecond = true;
  static GALLEY_INLINE Floats of(Floats a, Floats b, LoopNumbers) { return F::value(a, b); }
};

template <Operand kOperand, class T>
GALLEY_INLINE Floats element(const T* from, int64_t at, Floats one) {
  return kOperand == Operand::kArray ? load(from + at) : one;
}

template <class Math, Operand kA, Operand kB, class T>
void run(const T* a, const T* b, T* out, int64_t count, LoopNumbers k);

/// Less than a vector; apart, since its arrays would cost every call of `run` a frame.
template <class Math, Operand kA, Operand kB, class T>
HWY_NOINLINE void run_part(const T* a, const T* b, T* out, int64_t count, LoopNumbers k) {
  T a_part[kLanes] = {}, b_part[kLanes] = {}, out_part[kLanes];
  for (int64_t i = 0; i < count; ++i) {
    a_part[i] = a[kA == Operand::kArray ? i : 0];
    if constexpr (Math::kReadsSecond) b_part[i] = b[kB == Operand::kArray ? i : 0];
  }
  run<Math, Operand::kArray, Operand::kArray>(a_part, b_part, out_part, kLanes, k);
  for (int64_t i = 0; i < count; ++i) out[i] = out_part[i];
}

/// If the length is not a multiple of the vector, the last vector reaches back over what is done already; its operands are read before
/// anything is written, since out may be one of them.
template <class Math, Operand kA, Operand kB, class T>
void run(const T* a, const T* b, T* out, int64_t count, LoopNumbers k) {
  if (count < kLanes) return run_part<Math, kA, kB>(a, b, out, count, k);
  const Floats one_a = kA == Operand::kOne ? Floats(static_cast<float>(*a)) : Floats(0);
  const Floats one_b = Math::kReadsSecond && kB == Operand::kOne ? Floats(static_cast<float>(*b)) : Floats(0);
  const auto at = [&](int64_t i) HWY_ATTR __attribute__((always_inline)) {
    return Math::of(element<kA>(a, i, one_a), Math::kReadsSecond ? element<kB>(b, i, one_b) : Floats(0), k);
  };
  const int64_t whole = count & ~int64_t{kLanes - 1};
  Floats last(0);
  if (whole != count) last = at(count - kLanes);
  const int64_t pairs = count & ~int64_t{2 * kLanes - 1};
  for (int64_t i = 0; i < pairs; i += 2 * kLanes) {
    const Floats first = at(i), second = at(i + kLanes);
    store(first, out + i);
    store(second, out + i + kLanes);
  }
  if (pairs < whole) store(at(pairs), out + pairs);
  if (whole != count) store(last, out + count - kLanes);
}

/// Operands with any steps are gathered first.
template <class Math, class T>
void run_stepped(const T* a, int64_t a_step, const T* b, int64_t b_step, T* out, int64_t count) {
  T a_part[kLanes] = {}, b_part[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t some = count - i < kLanes ? count - i : kLanes;
    for (int64_t j = 0; j < some; ++j) {
      a_part[j] = a[(i + j) * a_step];
      b_part[j] = b[(i + j) * b_step];
    }
    run<Math, Operand::kArray, Operand::kArray>(a_part, b_part, out + i, some, {});
  }
}

template <class F, class T>
constexpr Loops<T> loops() {
  constexpr Operand kArray = Operand::kArray, kOne = Operand::kOne;
  Loops<T> made;
  if constexpr (F::values == 1) made.value = run<Value<F>, kArray, kArray, T>;
  if constexpr (HasSlope<F>) made.backward = run<Backward<F>, kArray, kArray, T>;
  if constexpr (F::values == 2 && !IsComparison<F>) {
    made.pairs[0][0] = run<Two<F>, kArray, kArray, T>;
    made.pairs[0][1] = run<Two<F>, kArray, kOne, T>;
    made.pairs[1][0] = run<Two<F>, kOne, kArray, T>;
    made.stepped = run_stepped<Two<F>, T>;
  }
  return made;
}

template <class... F>
const FunctionLoops* table(FunctionList<F...>) {
  static constexpr FunctionLoops all[] = {{loops<F, float>(), loops<F, BFloat16>()}...};
  return all;
}
const FunctionLoops* all_loops() { return table(Functions()); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::elementwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley::elementwise {

HWY_EXPORT(all_loops);

const FunctionLoops& loops_of(size_t function) {
  static const FunctionLoops* const loops = HWY_DYNAMIC_DISPATCH(all_loops)();
  return loops[function];
}

}  // namespace galley::elementwise
#endif
