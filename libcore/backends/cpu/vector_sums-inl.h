// Sums and maxima over rows of floats: several vectors of partial results, so that the latency of one addition does not bound the loop; a
// masked vector at the end. The caller's lambda computes the terms, so a pass that also stores them reads memory once. Compiled for each
// instruction set (hence the unusual include guard).

#include "libcore/backends/cpu/floats-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"

#if defined(GALLEY_VECTOR_SUMS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_VECTOR_SUMS_INL
#undef GALLEY_VECTOR_SUMS_INL
#else
#define GALLEY_VECTOR_SUMS_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace galley {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using elementwise::HWY_NAMESPACE::Floats;
using elementwise::HWY_NAMESPACE::kLanes;
using FloatTag = elementwise::HWY_NAMESPACE::D;

/// How a whole vector of a row is read and written.
struct WholeVector {
  HWY_INLINE Floats load(const float* from) const { return hn::LoadU(FloatTag(), from); }
  HWY_INLINE void store(Floats x, float* to) const { hn::StoreU(x.v, FloatTag(), to); }
};
/// The last `count` < kLanes elements of a row; the other lanes are 0.
struct PartOfVector {
  int64_t count;
  HWY_INLINE auto mask() const { return hn::FirstN(FloatTag(), static_cast<size_t>(count)); }
  HWY_INLINE Floats load(const float* from) const { return hn::MaskedLoad(mask(), FloatTag(), from); }
  HWY_INLINE void store(Floats x, float* to) const {  // by the stack: a masked store takes AMD's processors with AVX2 twelve cycles
    HWY_ALIGN float lanes[kLanes];
    hn::Store(x.v, FloatTag(), lanes);
    for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
};

constexpr int kSumVectors = 4;
constexpr int64_t kSumRun = 2048;  // elements added in float

/// Sum of the terms of elements [0, count): term(part, i) is a Floats with the terms of i, i + 1 ..., whose arrays it reads and writes by
/// part.load and part.store. Floats are added over runs of kSumRun elements; the runs are added in double.
template <class Term>
HWY_INLINE double sum_over(int64_t count, const Term& term) {
  constexpr int64_t kStep = kSumVectors * kLanes;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kSumRun) {
    const int64_t end = begin + kSumRun < count ? begin + kSumRun : count;
    Floats sum[kSumVectors];
    each<kSumVectors>([&](auto v) GALLEY_LOOP { sum[v] = Floats(0); });
    int64_t i = begin;
    for (; i + kStep <= end; i += kStep) {
      each<kSumVectors>([&](auto v) GALLEY_LOOP { sum[v] = sum[v] + term(WholeVector(), i + v * kLanes); });
    }
    for (; i + kLanes <= end; i += kLanes) sum[0] = sum[0] + term(WholeVector(), i);
    if (i < end) {
      const PartOfVector part{end - i};
      sum[1] = sum[1] + Floats(hn::IfThenElseZero(part.mask(), term(part, i).v));
    }
    const Floats all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(FloatTag(), all.v)));
  }
  return total;
}

HWY_INLINE double sum_of(const float* x, int64_t count) {
  return sum_over(count, [=](auto part, int64_t i) GALLEY_LOOP { return part.load(x + i); });
}
HWY_INLINE double dot_of(const float* x, const float* y, int64_t count) {
  return sum_over(count, [=](auto part, int64_t i) GALLEY_LOOP { return part.load(x + i) * part.load(y + i); });
}

/// Largest of `count` floats, NaN ignored; -inf where there are none.
HWY_INLINE float maximum_of(const float* x, int64_t count) {
  constexpr int64_t kStep = kSumVectors * kLanes;
  const Floats least(-__builtin_inff());
  // at_least(a, b) is a where b is NaN.
  Floats best[kSumVectors];
  each<kSumVectors>([&](auto v) GALLEY_LOOP { best[v] = least; });
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    each<kSumVectors>([&](auto v) GALLEY_LOOP { best[v] = at_least(best[v], WholeVector().load(x + i + v * kLanes)); });
  }
  for (; i + kLanes <= count; i += kLanes) best[0] = at_least(best[0], WholeVector().load(x + i));
  if (i < count) {
    const PartOfVector part{count - i};
    best[1] = at_least(best[1], Floats(hn::IfThenElse(part.mask(), part.load(x + i).v, least.v)));
  }
  const Floats all = at_least(at_least(best[0], best[1]), at_least(best[2], best[3]));
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), all.v));
}

}  // namespace HWY_NAMESPACE
}  // namespace galley
HWY_AFTER_NAMESPACE();

#endif  // toggle
