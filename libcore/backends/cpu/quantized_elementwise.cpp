// Element-wise operators on quantized arrays: sums, products, concatenation, tables, and the conversions from and to real values. Pieces of
// 512 values are computed in a float array in the first-level cache and rounded once (quantized_epilogue.h). One pass, bound by the
// conversions: about ten instructions per vector. Tables of 256 bytes are read one byte at a time.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

#include "libcore/tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace galley::quantized_elementwise_loops {
namespace HWY_NAMESPACE {

void sum_values(const uint8_t* a, uint8_t flip_a, float scale_a, const uint8_t* b, uint8_t flip_b, float scale_b, float shift, float* out,
                int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(a[i] ^ flip_a) * scale_a + (static_cast<float>(b[i] ^ flip_b) * scale_b + shift);
}
void product_values(const uint8_t* a, uint8_t flip_a, int32_t zero_a, const uint8_t* b, uint8_t flip_b, int32_t zero_b, float scale,
                    float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(((a[i] ^ flip_a) - zero_a) * ((b[i] ^ flip_b) - zero_b)) * scale;
}
/// A factor and a term for each channel.
void channel_values(const uint8_t* a, uint8_t flip, int32_t zero, const float* factor, const float* term, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>((a[i] ^ flip) - zero) * factor[i] + term[i];
}
void dequantize_values(const uint8_t* q, uint8_t flip, int32_t zero, float scale, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>((q[i] ^ flip) - zero) * scale;
}

void round_values_to_f8(const float* x, float scale, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = scale * rounded_to_f8(x[i] / scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized_elementwise_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "libcore/backends/cpu/quantized_epilogue.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace quantized_elementwise_loops {

HWY_EXPORT(sum_values);
HWY_EXPORT(product_values);
HWY_EXPORT(channel_values);
HWY_EXPORT(dequantize_values);
HWY_EXPORT(round_values_to_f8);

}  // namespace quantized_elementwise_loops

namespace {

using namespace quantized;

constexpr int64_t kPiece = 512;
constexpr int64_t kGrain = 16384;  // the fewest values of a thread

void lookup_values(const uint8_t* table, const uint8_t* q, uint8_t* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t in, result = 0;
    std::memcpy(&in, q + i, 8);
    for (int j = 0; j < 64; j += 8) result |= static_cast<uint64_t>(table[in >> j & 0xFF]) << j;
    std::memcpy(out + i, &result, 8);
  }
  for (; i < count; ++i) out[i] = table[q[i]];
}

/// A byte's place in a table that begins with its dtype's smallest value: its own as u8; of i8 the highest bit turned.
using Table = std::array<uint8_t, 256>;

/// quantized_add and quantized_mul.
class QuantizedBinary : public PreparedKernel {
 public:
  QuantizedBinary(const KernelQuery& q, bool multiply)
      : attrs_(q.attrs<QuantizedBinaryAttrs>()), multiply_(multiply), count_(q.in(0).elements()), out_bytes_(dtype_size(q.out(0).dtype)) {
    const TensorType &a = q.in(0), &b = q.in(1);
    set_results(epilogue_, attrs_, attrs_.activation);
    to_levels_ = in_levels(attrs_, attrs_.activation) ? 1 / attrs_.output_scale : 1;
    flip_a_ = flip_of(a.dtype);
    flip_b_ = flip_of(b.dtype);
    zero_a_ = static_cast<int32_t>(attrs_.a_zero_point) + flip_a_;
    zero_b_ = static_cast<int32_t>(attrs_.b_zero_point) + flip_b_;
    if (!(a.shape == b.shape)) {
      channels_ = a.shape[1];
      pixels_ = a.shape[2] * a.shape[3];
      images_ = a.shape[0];
    }
  }
  int64_t scratch_bytes() const override { return 2 * images_ * channels_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const auto *a = args.in<uint8_t>(0), *b = args.in<uint8_t>(1);
    auto* out = static_cast<std::byte*>(args.outputs[0]);
    if (channels_ > 0) return run_channels(a, b, out, static_cast<float*>(args.scratch));
    const auto scale_a = static_cast<float>(attrs_.a_scale * to_levels_), scale_b = static_cast<float>(attrs_.b_scale * to_levels_);
    const auto scale = static_cast<float>(attrs_.a_scale * attrs_.b_scale * to_levels_);
    const auto shift = static_cast<float>(-(attrs_.a_scale * zero_a_ + attrs_.b_scale * zero_b_) * to_levels_);
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      float values[kPiece];
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t count = std::min(kPiece, end - i);
        if (multiply_) {
          HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::product_values)(a + i, flip_a_, zero_a_, b + i, flip_b_, zero_b_, scale, values,
                                                                            count);
        } else {
          HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::sum_values)(a + i, flip_a_, scale_a, b + i, flip_b_, scale_b, shift, values,
                                                                        count);
        }
        finish_values(epilogue_, values, count, out + i * out_bytes_);
      }
    });
  }

 private:
  /// b has one value for each channel of an image: a's factor, or a term.
  void run_channels(const uint8_t* a, const uint8_t* b, std::byte* out, float* scratch) const {
    float *factor = scratch, *term = scratch + images_ * channels_;
    for (int64_t i = 0; i < images_ * channels_; ++i) {
      const double other = attrs_.b_scale * ((b[i] ^ flip_b_) - zero_b_) * to_levels_;
      factor[i] = static_cast<float>(multiply_ ? attrs_.a_scale * other : attrs_.a_scale * to_levels_);
      term[i] = static_cast<float>(multiply_ ? 0 : other);
    }
    parallel_for(images_ * pixels_, std::max<int64_t>(1, kGrain / channels_), [&](int64_t begin, int64_t end) {
      float values[kPiece], factors[kPiece], terms[kPiece];
      // Several pixels of few channels, or pieces of one with many.
      const int64_t together = std::max<int64_t>(1, kPiece / channels_);
      for (int64_t pixel = begin; pixel < end;) {
        const int64_t image = pixel / pixels_, at = image * channels_, image_end = std::min(end, (image + 1) * pixels_);
        if (channels_ > kPiece) {
          for (int64_t c = 0; c < channels_; c += kPiece) {
            const int64_t count = std::min(kPiece, channels_ - c);
            HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::channel_values)(a + pixel * channels_ + c, flip_a_, zero_a_, factor + at + c,
                                                                              term + at + c, values, count);
            finish_values(epilogue_, values, count, out + (pixel * channels_ + c) * out_bytes_);
          }
          ++pixel;
          continue;
        }
        for (int64_t i = 0; i < std::min(together, image_end - pixel); ++i) {
          std::copy_n(factor + at, channels_, factors + i * channels_);
          std::copy_n(term + at, channels_, terms + i * channels_);
        }
        for (; pixel < image_end; pixel += std::min(together, image_end - pixel)) {
          const int64_t count = std::min(together, image_end - pixel) * channels_;
          HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::channel_values)(a + pixel * channels_, flip_a_, zero_a_, factors, terms, values,
                                                                            count);
          finish_values(epilogue_, values, count, out + pixel * channels_ * out_bytes_);
        }
      }
    });
  }

  QuantizedBinaryAttrs attrs_;
  bool multiply_;
  int64_t count_, out_bytes_, channels_ = 0, pixels_ = 1, images_ = 0;
  Epilogue epilogue_;
  double to_levels_ = 1;
  uint8_t flip_a_ = 0, flip_b_ = 0;
  int32_t zero_a_ = 0, zero_b_ = 0;
};

class Lookup : public PreparedKernel {
 public:
  explicit Lookup(const KernelQuery& q) : count_(q.in(0).elements()) {
    const uint8_t flip = flip_of(q.in(0).dtype);
    const auto& table = q.attrs<LookupAttrs>().table;
    for (size_t i = 0; i < 256; ++i) table_[i ^ flip] = static_cast<uint8_t>(table[i]);
  }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      lookup_values(table_.data(), args.in<uint8_t>(0) + begin, args.out<uint8_t>(0) + begin, end - begin);
    });
  }

 private:
  int64_t count_;
  Table table_{};
};

/// Each input is mapped by its table to its part of the output.
class QuantizedConcat : public PreparedKernel {
 public:
  explicit QuantizedConcat(const KernelQuery& q) {
    const auto& a = q.attrs<QuantizedConcatAttrs>();
    const TensorType& y = q.out(0);
    const int axis = axis_of(a.axis, q.in(0));
    bool before = true;
    int64_t inner = 1;
    for (const int d : y.format.order(y.shape.rank())) {
      if (d == axis) before = false;
      if (d != axis) (before ? rows_ : inner) *= y.shape[d];
    }
    for (size_t i = 0; i < q.context.inputs.size(); ++i) {
      const TensorType& x = *q.context.inputs[i];
      parts_.push_back({x.shape[axis] * inner, false, {}});
      Part& part = parts_.back();
      row_ += part.size;
      const uint8_t flip = flip_of(x.dtype);
      part.same = true;
      for (int64_t v = 0; v < 256; ++v) {
        const int64_t value = flip ? v - 128 : v;
        const double real = a.input_scales[i] * static_cast<double>(value - a.input_zero_points[i]);
        const auto byte = static_cast<uint8_t>(quantize_real(real, a.output()));
        part.table[static_cast<size_t>(v ^ flip)] = byte;
        part.same &= byte == static_cast<uint8_t>(value);
      }
    }
  }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(rows_, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        uint8_t* to = args.out<uint8_t>(0) + row * row_;
        for (size_t i = 0; i < parts_.size(); ++i) {
          const Part& part = parts_[i];
          const uint8_t* from = args.in<uint8_t>(i) + row * part.size;
          if (part.same) {
            std::memcpy(to, from, static_cast<size_t>(part.size));
          } else {
            lookup_values(part.table.data(), from, to, part.size);
          }
          to += part.size;
        }
      }
    });
  }

 private:
  struct Part {
    int64_t size = 0;   // of a row
    bool same = false;  // the table changes nothing
    Table table{};
  };
  std::vector<Part> parts_;
  int64_t rows_ = 1, row_ = 0;
};

class Quantize : public PreparedKernel {
 public:
  explicit Quantize(const KernelQuery& q) : params_(q.attrs<QuantizeAttrs>().params()), count_(q.in(0).elements()) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain / 4, [&](int64_t begin, int64_t end) {
      quantize_values(args.in<float>(0) + begin, params_, args.out<uint8_t>(0) + begin, end - begin);
    });
  }

 private:
  QuantParams params_;
  int64_t count_;
};

class Dequantize : public PreparedKernel {
 public:
  explicit Dequantize(const KernelQuery& q)
      : scale_(static_cast<float>(q.attrs<DequantizeAttrs>().scale)), flip_(flip_of(q.in(0).dtype)), count_(q.in(0).elements()) {
    zero_ = static_cast<int32_t>(q.attrs<DequantizeAttrs>().zero_point) + flip_;
  }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain / 4, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::dequantize_values)(args.in<uint8_t>(0) + begin, flip_, zero_, scale_,
                                                                           args.out<float>(0) + begin, end - begin);
    });
  }

 private:
  float scale_;
  uint8_t flip_;
  int32_t zero_ = 0;
  int64_t count_;
};

/// A weight [O,...] from integers of 8 or 4 bits. Each output channel is read once, in runs that share a scale.
class DequantizeWeight : public PreparedKernel {
 public:
  explicit DequantizeWeight(const KernelQuery& q) : packed_(q.attrs<DequantizeWeightAttrs>().bits == 4) {
    const Shape& shape = q.out(0).shape;
    outputs_ = shape[0];
    weights_ = shape.elements() / outputs_;
    line_ = packed_ ? shape[-1] : weights_;
    group_ = q.attrs<DequantizeWeightAttrs>().group_size > 0 ? q.attrs<DequantizeWeightAttrs>().group_size : weights_;
    groups_ = (weights_ + group_ - 1) / group_;
    zero_points_ = q.context.has(2);
  }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t stored = packed_ ? (line_ + 1) / 2 : line_, lines = weights_ / line_;
    parallel_for(outputs_, std::max<int64_t>(1, kGrain / 4 / weights_), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * lines; at < end * lines; ++at)
        write_line(args, at / lines, at % lines * line_, args.in<uint8_t>(0) + at * stored);
    });
  }

 private:
  /// `count` halves of bytes from half `first` on.
  static void unpack(const uint8_t* bytes, int64_t first, int64_t count, uint8_t* out) {
    const auto half = [&](int64_t i) { return static_cast<uint8_t>(bytes[i / 2] >> (i % 2 * 4) & 15); };
    int64_t i = 0;
    if (first % 2 != 0 && count > 0) out[i++] = half(first);
    const uint8_t* from = bytes + (first + i) / 2;
    for (; i + 2 <= count; i += 2, ++from) {
      out[i] = *from & 15;
      out[i + 1] = static_cast<uint8_t>(*from >> 4);
    }
    if (i < count) out[i] = half(first + i);
  }

  /// The values of channel `output` from `first` on, as many as a line has.
  void write_line(const KernelArgs& args, int64_t output, int64_t first, const uint8_t* q) const {
    const uint8_t flip = packed_ ? 8 : 128;  // makes a signed number one from 0 on
    std::array<uint8_t, kPiece> codes;
    for (int64_t done = 0; done < line_;) {
      const int64_t at = first + done, group = output * groups_ + at / group_;
      int64_t count = std::min(line_ - done, group_ - at % group_);
      const uint8_t* from = q + done;
      if (packed_) {
        count = std::min<int64_t>(count, kPiece);
        unpack(q, done, count, codes.data());
        from = codes.data();
      }
      const int32_t zero = flip + (zero_points_ ? args.in<int8_t>(2)[group] : 0);
      HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::dequantize_values)(from, flip, zero, args.in<float>(1)[group],
                                                                           args.out<float>(0) + output * weights_ + at, count);
      done += count;
    }
  }

  bool packed_, zero_points_ = false;
  int64_t outputs_ = 0, weights_ = 0, line_ = 0, group_ = 0, groups_ = 0;
};

/// A weight [O,...] from f8_e4m3.
class DequantizeF8Weight : public PreparedKernel {
 public:
  explicit DequantizeF8Weight(const KernelQuery& q) : outputs_(q.out(0).shape[0]), weights_(q.out(0).elements() / outputs_) {
    for (size_t code = 0; code < values_.size(); ++code) values_[code] = float_from_f8(static_cast<uint8_t>(code));
  }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(outputs_, std::max<int64_t>(1, kGrain / 4 / weights_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * weights_; i < end * weights_; ++i)
        args.out<float>(0)[i] = args.in<float>(1)[i / weights_] * values_[args.in<uint8_t>(0)[i]];
    });
  }

 private:
  int64_t outputs_, weights_;
  std::array<float, 256> values_;
};

class RoundToF8 : public PreparedKernel {
 public:
  explicit RoundToF8(const KernelQuery& q) : scale_(static_cast<float>(q.attrs<RoundToF8Attrs>().scale)), count_(q.in(0).elements()) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain / 4, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(quantized_elementwise_loops::round_values_to_f8)(args.in<float>(0) + begin, scale_, args.out<float>(0) + begin,
                                                                            end - begin);
    });
  }

 private:
  float scale_;
  int64_t count_;
};

Support supports_all(const KernelQuery& q) {
  if (q.in(0).format.is_blocked()) return Support::no(cat("format ", q.in(0).format));
  if (!(q.in(0).format == q.out(0).format)) return Support::no(cat("formats ", q.in(0).format, " and ", q.out(0).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}
Support supports_weight_of(const KernelQuery& q, bool f8) {
  if ((q.in(0).dtype == DType::kF8E4M3) != f8) return Support::no(cat("dtype ", q.in(0).dtype));
  if (q.out(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.out(0).dtype));
  for (const TensorType* type : {&q.in(0), &q.out(0)})
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  return q.out(0).elements() == 0 ? Support::no("empty array") : Support::yes();
}
Support supports_weight(const KernelQuery& q) { return supports_weight_of(q, false); }
Support supports_f8_weight(const KernelQuery& q) { return supports_weight_of(q, true); }
Support supports_quantize(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports_all(q);
}
Support supports_binary(const KernelQuery& q) {
  if (q.in(0).shape == q.in(1).shape) {
    if (!(q.in(0).format == q.in(1).format)) return Support::no(cat("formats ", q.in(0).format, " and ", q.in(1).format));
  } else if (!q.in(0).format.is_channels_last()) {
    return Support::no(cat("b has one value for each channel and a is ", q.in(0).format, ", not channels_last"));
  }
  return supports_all(q);
}
Support supports_concat(const KernelQuery& q) {
  if (q.out(0).dtype == DType::kF32) return Support::no("f32 output");
  for (const TensorType* x : q.context.inputs) {
    if (!(x->format == q.out(0).format)) return Support::no(cat("formats ", x->format, " and ", q.out(0).format));
  }
  return supports_all(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}
template <bool kMultiply>
std::unique_ptr<PreparedKernel> prepare_binary(const KernelQuery& q) {
  return std::make_unique<QuantizedBinary>(q, kMultiply);
}

const std::array<Kernel, 9> kKernels{{{"quantized_add", "float_pieces", supports_binary, prepare_binary<false>},
                                      {"quantized_mul", "float_pieces", supports_binary, prepare_binary<true>},
                                      {"quantized_concat", "tables", supports_concat, prepare<QuantizedConcat>},
                                      {"lookup", "table", supports_all, prepare<Lookup>},
                                      {"quantize", "pieces", supports_quantize, prepare<Quantize>},
                                      {"dequantize", "pieces", supports_all, prepare<Dequantize>},
                                      {"dequantize_weight", "lines", supports_weight, prepare<DequantizeWeight>},
                                      {"dequantize_weight", "f8_values", supports_f8_weight, prepare<DequantizeF8Weight>},
                                      {"round_to_f8", "pieces", supports_quantize, prepare<RoundToF8>}}};

}  // namespace

std::span<const Kernel> cpu_quantized_elementwise() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
