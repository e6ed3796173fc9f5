#pragma once
// Loops over arrays for every element-wise function, compiled for each instruction set (Google Highway) and chosen at run time.

#include <array>
#include <cstddef>
#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"

namespace galley::elementwise {

/// The parameters of a function, in float.
using LoopNumbers = std::array<float, 2>;

/// An operand of a function of two values is an array, or one element for all.
enum class Operand : uint8_t { kArray, kOne };

template <class T>
struct Loops {
  /// out[i] = f(a[i]), f'(b[i]) a[i] or f(a[i], b[i]). out may be a or b.
  using Loop = void (*)(const T* a, const T* b, T* out, int64_t count, LoopNumbers numbers);
  /// out[i] = f(a[i * a_step], b[i * b_step]).
  using SteppedLoop = void (*)(const T* a, int64_t a_step, const T* b, int64_t b_step, T* out, int64_t count);
  Loop value = nullptr;           // of functions of one value
  Loop backward = nullptr;        // of those that have a slope
  Loop pairs[2][2] = {};          // of functions of two values but comparisons, by the kinds of a and b; not of two single elements
  SteppedLoop stepped = nullptr;  // of those, for any steps
};
struct FunctionLoops {
  Loops<float> wide;
  Loops<BFloat16> narrow;
};

/// The loops of the function at that position of Functions (ops/elementwise_functions.h).
const FunctionLoops& loops_of(size_t function);

}  // namespace galley::elementwise
