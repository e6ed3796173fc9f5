#pragma once
// Conversion between real values and integers: quantize, dequantize, table look-ups on integers, weights stored as integers. The formula is
// in tensor/quant_params.h.

#include <vector>

#include "libcore/ops/elementwise.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/quant_params.h"

namespace galley {

struct QuantizeAttrs : OptionsOf<QuantizeAttrs> {
  QuantizeAttrs() = default;
  explicit QuantizeAttrs(const QuantParams& p) : scale(p.scale), zero_point(p.zero_point), dtype(p.dtype), qmin(p.qmin), qmax(p.qmax) {}
  double scale = 1;
  int64_t zero_point = 0;
  DType dtype = DType::kU8;
  int64_t qmin = 0, qmax = 255;
  QuantParams params() const { return {scale, zero_point, dtype, qmin, qmax}; }
  void options(OptionVisitor& v) override;
};
struct DequantizeAttrs : OptionsOf<DequantizeAttrs> {
  double scale = 1;
  int64_t zero_point = 0;
  void options(OptionVisitor& v) override;
};
struct LookupAttrs : OptionsOf<LookupAttrs> {
  std::vector<int64_t> table;  // 256 results, from the smallest input (u8: 0, i8: -128) on
  DType dtype = DType::kU8;    // of the results: u8 or i8
  void options(OptionVisitor& v) override;
};
struct DequantizeWeightAttrs : OptionsOf<DequantizeWeightAttrs> {
  int64_t bits = 8;            // 8: one i8 per weight; 4: two signed numbers per byte along the last axis, the low half first
  int64_t group_size = 0;      // consecutive weights of an output channel (I*kh*kw) that share a scale; 0: the whole channel
  std::vector<int64_t> shape;  // of the weight, for bits 4 with an odd last axis; empty: as stored, with twice the last axis for bits 4
  void options(OptionVisitor& v) override;
};

const OpDef& quantize_op();
const OpDef& dequantize_op();
const OpDef& lookup_op();
const OpDef& dequantize_weight_op();

/// x f32 -> u8 or i8 of the same shape: clamp(round_half_even(x / scale) + zero_point, qmin, qmax).
Value quantize(Value x, const QuantParams& params);
/// q u8 or i8 -> f32: scale * (q - zero_point).
Value dequantize(Value q, const QuantParams& params);
/// table[q - smallest value of q's dtype].
Value lookup(Value q, const LookupAttrs& attrs);
/// The same values with another scale and zero point (a lookup; q itself if both maps are equal).
Value requantize(Value q, const QuantParams& from, const QuantParams& to);
/// weight i8 or f8_e4m3 [O,...] (or u8, packed: bits 4), scale f32 [O] or [O,G], zero_point i8 of scale's shape or absent (0)
/// -> f32 [O,...] = scale * (q - zero_point), G = ceil(I*kh*kw / group_size). f8_e4m3: neither zero points nor groups.
Value dequantize_weight(Value weight, Value scale, Value zero_point, const DequantizeWeightAttrs& attrs = {});

/// to(f(from(q))) for the 256 integers of from.dtype, with one rounding.
LookupAttrs table_of(const QuantParams& from, const QuantParams& to, const ScalarFunction& f);

}  // namespace galley
