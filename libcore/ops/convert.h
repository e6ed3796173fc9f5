#pragma once
// Operators that keep shape and values and change how they are stored: cast (dtype), reduce_precision (the values of another dtype),
// reorder (memory format); and full, a constant array.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

inline constexpr std::array<std::string_view, 11> kDTypeNames{"f32", "f64", "f16", "bf16", "i64",    "i32",
                                                              "i16", "i8",  "u8",  "bool", "f8_e4m3"};

struct CastAttrs : OptionsOf<CastAttrs> {
  DType dtype = DType::kF32;
  void options(OptionVisitor& v) override;
};
struct ReducePrecisionAttrs : OptionsOf<ReducePrecisionAttrs> {
  DType dtype = DType::kF32;
  void options(OptionVisitor& v) override;
};
struct ReorderAttrs : OptionsOf<ReorderAttrs> {
  std::string format = "contiguous";  // as MemoryFormat::parse reads
  void options(OptionVisitor& v) override;
};
struct FullAttrs : OptionsOf<FullAttrs> {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  double value = 0;
  std::string format = "contiguous";
  std::vector<std::string> names;  // dimension names, or none
  void options(OptionVisitor& v) override;
};

const OpDef& cast_op();
const OpDef& reduce_precision_op();
const OpDef& reorder_op();
const OpDef& full_op();

/// The same values in another dtype (round to nearest even; to integers: toward zero, as in PyTorch; to f8_e4m3: +-448 beyond it). x itself
/// if it has that dtype.
Value cast(Value x, DType dtype);
/// Each value rounded to the nearest value of a floating dtype, stored in the dtype of x: for computations that are defined in that dtype.
/// The gradient is that of the identity. x itself if it has that dtype.
Value reduce_precision(Value x, DType dtype);
/// The same values in another memory format. x itself if it has that format.
Value reorder(Value x, const MemoryFormat& format);
/// A constant array of that type (names included).
Value full(Graph& graph, const TensorType& type, double value);

}  // namespace galley
