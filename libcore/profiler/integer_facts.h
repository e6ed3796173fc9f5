#pragma once
// Facts for the advice rules about a program with integer operators: where it converts to float and back, which layers are in float, and
// which products could use a faster path.

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "libcore/profiler/profile.h"

namespace galley {

/// Key of a profile row as describe() names it: module, type, shape.
using RowKey = std::tuple<std::string, std::string, std::string>;
inline RowKey row_key(const OperatorRow& row) { return {row.module, row.type, row.shape}; }

/// A float subgraph between integer operators.
struct FloatIsland {
  std::set<RowKey> conversions;    // the quantize and dequantize operators around it
  std::set<RowKey> layers;         // layers with weights (conv2d, linear)
  std::vector<std::string> names;  // modules of these layers
  std::string cause;               // "softmax at features.3 has no int8 kernel", "layer features.3 is in float (override)"
};

struct IntegerFacts {
  bool any = false;  // the program has integer products
  std::vector<FloatIsland> islands;
  /// Products whose operands may use all 8 bits on both sides, with u8 (or computed ranges) on the left.
  std::set<RowKey> exact;
  bool overrides = false;  // the recipe already sets quantize.overrides, which a fragment would replace
};

/// Whether the operator is a product of 8-bit values: of integers, or of values that it rounds to them.
bool multiplies_integers(const OpDef& op);
/// `float_reasons`: why layers were left in float, by layer name (LayerPlan::float_reason).
IntegerFacts integer_facts(const Program& program, const std::map<std::string, std::string>& float_reasons);

}  // namespace galley
