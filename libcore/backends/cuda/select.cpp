// Selection, rotary tables and resampling, by the kernels of kernels/select.h.

#include <algorithm>

#include "libcore/backends/axis_view.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/rotary.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

class Topk : public PreparedKernel {
 public:
  explicit Topk(const KernelQuery& query) {
    const auto& attrs = query.attrs<TopkAttrs>();
    const AxisView x(query.in(0).shape, axis_of(attrs.axis, query.in(0)));
    call_ = {.type = type_of(query.in(0)), .outer = x.outer, .size = x.size, .inner = x.inner, .k = attrs.k};
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::TopkCall call = call_;
    call.from = args.inputs[0];
    call.values = args.outputs[0];
    call.indices = args.outputs[1];
    launch_elements(stream, "largest_elements", call.outer * call.inner, call);
  }

 private:
  device::TopkCall call_{};
};

class RotaryTable : public PreparedKernel {
 public:
  explicit RotaryTable(const KernelQuery& query) {
    const auto& attrs = query.attrs<RotaryTableAttrs>();
    call_.rows = query.has(0) ? query.in(0).shape.elements() : attrs.positions;
    call_.per_sequence = query.has(1) ? std::max<int64_t>(1, call_.rows / query.in(0).shape[0]) : 1;
    call_.limit = attrs.limit;
    call_.pairs = static_cast<int>(attrs.frequencies.size());
    call_.growth = attrs.growth;
    call_.factor = attrs.factor;
    std::copy(attrs.frequencies.begin(), attrs.frequencies.end(), call_.frequencies);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::RotaryTableCall call = call_;
    call.positions = args.in<int64_t>(0);
    call.lengths = args.in<int64_t>(1);
    call.to = args.out<float>(0);
    launch_elements(stream, "rotary_rows", call.rows * call.pairs, call);
  }

 private:
  device::RotaryTableCall call_{};
};
Support supports_rotary_table(const KernelQuery& query) {
  if (query.attrs<RotaryTableAttrs>().frequencies.size() > device::kMaxPairs) return Support::no("more than 128 pairs");
  return query.out(0).dtype == DType::kF32 ? Support::yes() : Support::no(cat("dtype ", query.out(0).dtype));
}

/// Forward and, with the attributes of the backward operator, backward.
template <class Attrs>
class Resize : public PreparedKernel {
 public:
  explicit Resize(const KernelQuery& query) : elements_(query.out(0).shape.elements()) {
    const auto& attrs = query.attrs<Attrs>();
    const TensorType &in = kBackward ? query.out(0) : query.in(0), &out = kBackward ? query.in(0) : query.out(0);
    call_.type = type_of(in);
    call_.nearest = attrs.mode == ResizeMode::kNearest;
    call_.align_corners = attrs.align_corners;
    call_.planes = in.shape[0] * in.shape[1];
    call_.channels = std::max<int64_t>(1, in.shape[1]);
    const Shape in_steps = in.format.strides(in.shape), out_steps = out.format.strides(out.shape);
    for (int d = 0; d < 2; ++d) {
      call_.in_size[d] = in.shape[d + 2];
      call_.out_size[d] = out.shape[d + 2];
    }
    for (int d = 0; d < 4; ++d) {
      call_.in_steps[d] = in_steps[d];
      call_.out_steps[d] = out_steps[d];
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ResizeCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, kBackward ? "resize_backward_pixels" : "resize_pixels", elements_, call);
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, ResizeBackwardAttrs>;
  int64_t elements_;
  device::ResizeCall call_{};
};

constexpr Kernel kKernels[] = {
    {"topk", "passes", only_contiguous, prepare_cuda<Topk>},
    {"rotary_table", "rows", supports_rotary_table, prepare_cuda<RotaryTable>},
    {"resize", "pixels", no_blocked_formats, prepare_cuda<Resize<ResizeAttrs>>},
    {"resize_backward", "pixels", no_blocked_formats, prepare_cuda<Resize<ResizeBackwardAttrs>>},
};

}  // namespace

std::span<const Kernel> cuda_select() { return kKernels; }

}  // namespace galley
