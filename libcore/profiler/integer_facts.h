#pragma once
// What the rules of advice must know of a program with integer operators: where it leaves the integers and comes back, which layers are
// in float, which products could take the faster way.

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "libcore/profiler/profile.h"

namespace galley {

/// A row of a profile, as describe() names it: module, type, shape.
using RowKey = std::tuple<std::string, std::string, std::string>;
inline RowKey row_key(const OperatorRow& row) { return {row.module, row.type, row.shape}; }

/// Operators in float between integers: from what leaves the integers to what quantizes again.
struct FloatIsland {
  std::set<RowKey> conversions;    // quantize, dequantize
  std::set<RowKey> layers;         // conv2d, linear: with weights of their own
  std::vector<std::string> names;  // modules of these layers
  std::string cause;               // "softmax at features.3 has no integer form", "layer features.3 is in float (override)"
};

struct IntegerFacts {
  bool any = false;  // products of integers are among the operators
  std::vector<FloatIsland> islands;
  /// Products whose operands are promised nothing: 8 bits on both sides, u8 (or computed ranges) on the left.
  std::set<RowKey> exact;
  bool overrides = false;  // the recipe has quantize.overrides already, which a fragment would replace
};

/// `float_reasons`: of layers that were left in float, by name (LayerPlan::float_reason).
IntegerFacts integer_facts(const Program& program, const std::map<std::string, std::string>& float_reasons);

}  // namespace galley
