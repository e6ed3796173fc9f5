// quantized_conv2d, quantized_linear and dynamic_quantized_linear on packed weights; quantized_implicit_gemm.h has layout, cost and bound.
// Depthwise convolutions are in quantized_depthwise.cpp.

#include <algorithm>
#include <array>
#include <limits>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/quantized_epilogue.h"
#include "libcore/backends/cpu/quantized_implicit_gemm.h"
#include "libcore/backends/cpu/quantized_pack.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using namespace quantized;

MemoryFormat packed_conv() { return MemoryFormat::blocked("AcdB16a4b"); }
MemoryFormat packed_linear() { return MemoryFormat::blocked("AB16a4b"); }

ConvSizes sizes_of(const QuantizedConv2dAttrs& a, const Shape& x, const Shape& w, const Shape& y, int64_t out_bytes) {
  const auto stride = pair(a.stride), padding = pair(a.padding), dilation = pair(a.dilation);
  return {x[0],      x[1],      x[2],       x[3],       y[1],        y[2],        y[3],     w[2],     w[3],
          stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1], a.groups, out_bytes};
}

/// Rows as the pixels of one image.
ConvSizes sizes_of(int64_t rows, int64_t inputs, int64_t outputs, int64_t out_bytes) {
  ConvSizes s;
  s.width = s.out_width = rows;
  s.channels = inputs;
  s.outputs = outputs;
  s.out_bytes = out_bytes;
  return s;
}

/// Bytes of i8 are moved by 128, so that the promise about activations (0..127) says nothing of them.
Path path_of(Saturation saturation, DType x, const ConvSizes& s) {
  return fitting(best_path(x == DType::kI8 ? Saturation::kExact : saturation), s.images * s.out_height * s.out_width,
                 quads_of(s.channels / s.groups) * s.kernel_w);
}

/// Convolution and linear layer.
class QuantizedProduct : public PreparedKernel {
 public:
  template <class Attrs>
  QuantizedProduct(const KernelQuery& q, const Attrs& a, const ConvSizes& sizes, const MemoryFormat& packed)
      : results_(a, a.activation, sizes.outputs),
        path_(path_of(a.saturation, q.in(0).dtype, sizes)),
        gemm_(sizes, path_, q.threads),
        weight_(q.in(1), packed),
        flip_(flip_of(q.in(0).dtype)),
        zero_point_(static_cast<int32_t>(a.input_zero_point) + flip_) {}
  void set_residual(const QuantizedConv2dAttrs& a, DType dtype) { results_.set_residual(a.residual_scale, a.residual_zero_point, dtype); }

  int64_t scratch_bytes() const override { return results_.scratch_bytes() + weight_.scratch_bytes() + gemm_.scratch_bytes(); }
  std::string implementation() const override { return path_name(path_); }
  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    Epilogue e = results_.epilogue(args.in<float>(2), args.in<float>(3), scratch);
    e.residual = args.in<uint8_t>(4);
    e.out = args.outputs[0];
    scratch += results_.scratch_bytes();
    const int8_t* weight = weight_.get(args.in<int8_t>(1), scratch);
    gemm_.run(args.in<uint8_t>(0), flip_, zero_point_, weight, e, scratch + weight_.scratch_bytes());
  }

 private:
  Results results_;
  Path path_;
  ImplicitGemm gemm_;
  Packed weight_;
  uint8_t flip_;
  int32_t zero_point_;
};

std::unique_ptr<PreparedKernel> prepare_conv(const KernelQuery& q) {
  const auto& a = q.attrs<QuantizedConv2dAttrs>();
  auto kernel = std::make_unique<QuantizedProduct>(
      q, a, sizes_of(a, q.in(0).shape, q.in(1).shape, q.out(0).shape, dtype_size(q.out(0).dtype)), packed_conv());
  if (q.has(4)) kernel->set_residual(a, q.in(4).dtype);
  return kernel;
}

std::unique_ptr<PreparedKernel> prepare_linear(const KernelQuery& q) {
  const Shape& w = q.in(1).shape;
  return std::make_unique<QuantizedProduct>(q, q.attrs<QuantizedLinearAttrs>(),
                                            sizes_of(q.in(0).elements() / w[1], w[1], w[0], dtype_size(q.out(0).dtype)), packed_linear());
}

class DynamicLinear : public PreparedKernel {
 public:
  explicit DynamicLinear(const KernelQuery& q)
      : attrs_(q.attrs<DynamicQuantizedLinearAttrs>()),
        count_(q.in(0).elements()),
        inputs_(q.in(1).shape[1]),
        results_(QuantizedLinearAttrs(), attrs_.activation, q.in(1).shape[0]),
        sizes_(sizes_of(count_ / inputs_, inputs_, q.in(1).shape[0], 4)),
        path_(path_of(attrs_.saturation, DType::kU8, sizes_)),
        gemm_(sizes_, path_, q.threads),
        weight_(q.in(1), packed_linear()) {}
  int64_t scratch_bytes() const override {
    return aligned_bytes(count_ + 64) + results_.scratch_bytes() + weight_.scratch_bytes() + gemm_.scratch_bytes();
  }
  std::string implementation() const override { return path_name(path_); }
  void run(Stream&, const KernelArgs& args) const override {
    const float* x = args.in<float>(0);
    auto* bytes = static_cast<uint8_t*>(args.scratch);
    auto* scratch = static_cast<std::byte*>(args.scratch) + aligned_bytes(count_ + 64);
    const ValueRange range = range_of(x, count_);
    if (!range.finite) {  // no scale holds it
      std::fill_n(args.out<float>(0), count_ / inputs_ * results_.outputs(), std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const QuantParams params =
        affine_params(range.min, range.max, quant_range(QuantDType::kUint8, attrs_.saturation == Saturation::kReduced));
    parallel_for(count_, 16384, [&](int64_t begin, int64_t end) { quantize_values(x + begin, params, bytes + begin, end - begin); });
    Epilogue e = results_.epilogue(args.in<float>(2), args.in<float>(3), scratch, params.scale);
    e.out = args.outputs[0];
    scratch += results_.scratch_bytes();
    const int8_t* weight = weight_.get(args.in<int8_t>(1), scratch);
    gemm_.run(bytes, 0, static_cast<int32_t>(params.zero_point), weight, e, scratch + weight_.scratch_bytes());
  }

 private:
  DynamicQuantizedLinearAttrs attrs_;
  int64_t count_, inputs_;
  Results results_;
  ConvSizes sizes_;
  Path path_;
  ImplicitGemm gemm_;
  Packed weight_;
};

/// Offsets within a thread's workspace are 32-bit.
constexpr int64_t kMostRow = int64_t{1} << 24;

Support supports_conv(const KernelQuery& q) {
  if (!available()) return Support::no("no vectors of 128 bits");
  for (const int i : {0, 4}) {
    if (q.has(i) && !q.in(i).format.is_channels_last()) return Support::no(cat("format ", q.in(i).format));
  }
  if (!q.out(0).format.is_channels_last()) return Support::no(cat("format ", q.out(0).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  if (q.in(0).shape[1] * (q.in(0).shape[3] + 64) > kMostRow) return Support::no("an image's row of more than 2^24 values");
  return Support::yes();
}

Support supports_linear(const KernelQuery& q) {
  if (!available()) return Support::no("no vectors of 128 bits");
  if (!q.in(0).format.is_contiguous()) return Support::no(cat("format ", q.in(0).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  if (q.in(1).shape[1] > kMostRow) return Support::no("rows of more than 2^24 values");
  return Support::yes();
}

MemoryFormat preferred_conv(const KernelQuery& q, int input) { return input == 1 ? packed_conv() : q.in(input).format; }
MemoryFormat preferred_linear(const KernelQuery& q, int input) { return input == 1 ? packed_linear() : q.in(input).format; }

}  // namespace

const Algorithm algorithm::kQuantizedConv{supports_conv, prepare_conv, preferred_conv};
const Algorithm algorithm::kQuantizedLinear{supports_linear, prepare_linear, preferred_linear};
const Algorithm algorithm::kDynamicQuantizedLinear{supports_linear, prepare_as<DynamicLinear>, preferred_linear};

}  // namespace galley
