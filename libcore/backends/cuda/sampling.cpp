// Samples of images, by the kernels of kernels/sampling.h.

#include <algorithm>
#include <cmath>

#include "libcore/backends/cuda/fixed_sums.h"
#include "libcore/backends/cuda/kernels/vision_calls.h"
#include "libcore/ops/flow.h"
#include "libcore/ops/grid_sample.h"
#include "libcore/ops/orthonormal.h"
#include "libcore/ops/roi_align.h"

namespace galley {
namespace {

Support is_float(const KernelQuery& query) {
  for (const auto& types : {query.context.inputs, query.context.outputs}) {
    for (const TensorType* type : types)
      if (type != nullptr && is_floating(type->dtype) && type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
  }
  return Support::yes();
}
Support supports(const KernelQuery& query) {
  if (const Support formats = only_contiguous(query); !formats) return formats;
  return is_float(query);
}
/// Images, contiguous or channels_last.
Support supports_images(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  return is_float(query);
}
Support supports_levels(const KernelQuery& query) {
  if (query.context.inputs.size() > 2 + device::kMostLevels) return Support::no(cat("more than ", device::kMostLevels, " levels"));
  return supports_images(query);
}
Support supports_roi(const KernelQuery& query) {
  if (query.context.inputs.size() > 3 + device::kMostLevels) return Support::no(cat("more than ", device::kMostLevels, " levels"));
  return supports_images(query);
}

void set_level(device::RoiCall& call, int level, const TensorType& type) {
  const Shape steps = type.format.strides(type.shape);
  for (int d = 0; d < 4; ++d) call.steps[level][d] = steps[d];
  call.sizes[level][0] = type.shape[2];
  call.sizes[level][1] = type.shape[3];
}

/// roi_align, and with the attributes of the backward operator its gradient in one level.
template <class Attrs>
class RoiAlign : public PreparedKernel {
 public:
  explicit RoiAlign(const KernelQuery& query) {
    const auto& attrs = query.attrs<Attrs>();
    const Shape& bins = kBackward ? query.in(0).shape : query.out(0).shape;
    call_.samples = bins[0];
    call_.rows = bins[1];
    call_.channels = bins[2];
    call_.bins[0] = bins[3];
    call_.bins[1] = bins[4];
    call_.aligned = attrs.aligned;
    call_.sampling_ratio = attrs.sampling_ratio;
    call_.level_count = static_cast<int>(attrs.spatial_scale.size());
    std::copy(attrs.spatial_scale.begin(), attrs.spatial_scale.end(), call_.scales);
    if (call_.level_count > 1) {
      call_.first_level = static_cast<int64_t>(-std::log2(attrs.spatial_scale.front()));
      call_.last_level = static_cast<int64_t>(-std::log2(attrs.spatial_scale.back()));
    }
    if constexpr (kBackward) {
      call_.level = static_cast<int>(attrs.level);
      set_level(call_, 0, query.out(0));
    } else {
      for (int level = 0; level < call_.level_count; ++level) set_level(call_, level, query.in(input_of(level)));
    }
    elements_ = query.out(0).elements();
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::RoiCall call = call_;
    call.boxes = args.in<float>(1);
    call.count = args.in<int64_t>(2);
    call.extents = args.in<int64_t>(3);
    call.to = args.out<float>(0);
    if constexpr (kBackward) call.grad = args.in<float>(0);
    for (int level = 0; !kBackward && level < call.level_count; ++level)
      call.levels[level] = args.in<float>(static_cast<size_t>(input_of(level)));
    launch_elements(stream, kBackward ? "roi_backward_pixels" : "roi_bins", elements_, call);
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, RoiAlignBackwardAttrs>;
  static int input_of(int level) { return level == 0 ? 0 : 3 + level; }
  device::RoiCall call_{};
  int64_t elements_ = 0;
};

template <class Attrs>
device::GridSampleCall grid_call(const Attrs& attrs, const TensorType& x, const TensorType& grid) {
  constexpr device::GridEdge kEdges[] = {device::kGridZeros, device::kGridBorder, device::kGridReflection};
  return {.mode = attrs.mode == GridSampleMode::kNearest ? device::kGridNearest : device::kGridBilinear,
          .edge = kEdges[static_cast<int>(attrs.padding_mode)],
          .align_corners = attrs.align_corners,
          .samples = x.shape[0],
          .channels = x.shape[1],
          .in_size = {x.shape[2], x.shape[3]},
          .out_size = {grid.shape[1], grid.shape[2]}};
}

class GridSample : public PreparedKernel {
 public:
  explicit GridSample(const KernelQuery& query) : call_(grid_call(query.attrs<GridSampleAttrs>(), query.in(0), query.in(1))) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GridSampleCall call = call_;
    call.x = args.in<float>(0);
    call.grid = args.in<float>(1);
    call.to = args.out<float>(0);
    launch_elements(stream, "grid_sample_pixels", call.samples * call.channels * call.out_size[0] * call.out_size[1], call);
  }

 private:
  device::GridSampleCall call_;
};

class GridSampleBackward : public PreparedKernel {
 public:
  explicit GridSampleBackward(const KernelQuery& query)
      : call_(grid_call(query.attrs<GridSampleBackwardAttrs>(), query.out(0), query.in(1))), sums_(query.out(0).elements()) {}
  int64_t scratch_bytes() const override { return sums_.bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GridSampleCall call = call_;
    const int64_t numbers = call.samples * call.channels * call.out_size[0] * call.out_size[1];
    call.grad = args.in<float>(0);
    call.grid = args.in<float>(1);
    call.sums = sums_.sums(args.scratch);
    call.largest = sums_.largest(args.scratch);
    sums_.begin(stream, args.scratch, call.grad, numbers);
    launch_elements(stream, "grid_sample_backward_points", numbers, call);
    sums_.end(stream, args.scratch, args.out<float>(0));
  }

 private:
  device::GridSampleCall call_;
  FixedSums sums_;
};

class GridSampleBackwardGrid : public PreparedKernel {
 public:
  explicit GridSampleBackwardGrid(const KernelQuery& query) : call_(grid_call(query.attrs<GridSampleAttrs>(), query.in(1), query.in(2))) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GridSampleCall call = call_;
    call.grad = args.in<float>(0);
    call.x = args.in<float>(1);
    call.grid = args.in<float>(2);
    call.to = args.out<float>(0);
    launch_elements(stream, "grid_sample_backward_grid_points", call.samples * call.out_size[0] * call.out_size[1], call);
  }

 private:
  device::GridSampleCall call_;
};

class Detach : public PreparedKernel {
 public:
  explicit Detach(const KernelQuery& query) : bytes_(query.in(0).bytes()) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    if (args.outputs[0] != args.inputs[0]) stream.copy(args.outputs[0], args.inputs[0], bytes_);
  }

 private:
  int64_t bytes_;
};
Support supports_detach(const KernelQuery& query) {
  return query.in(0).format == query.out(0).format ? Support::yes() : Support::no("operands of different formats");
}

device::ImageSteps steps_of(const TensorType& image) {
  const Shape steps = image.format.strides(image.shape);
  return {steps[0], steps[1], steps[3]};
}

device::CorrelationCall correlation_call(const Shape& first, int64_t radius, int64_t values) {
  return {.level_count = static_cast<int>(values / ((2 * radius + 1) * (2 * radius + 1))),
          .samples = first[0],
          .channels = first[1],
          .rows = first[2],
          .columns = first[3],
          .radius = radius};
}

/// The look-up, and its gradient in the first features.
template <bool kBackward>
class Correlation : public PreparedKernel {
 public:
  explicit Correlation(const KernelQuery& query)
      : call_(correlation_call(kBackward ? query.out(0).shape : query.in(1).shape, query.attrs<CorrelationLookupAttrs>().radius,
                               kBackward ? query.in(0).shape[1] : query.out(0).shape[1])),
        elements_(query.out(0).elements()) {
    call_.flow_steps = steps_of(query.in(kBackward ? 1 : 0));
    (kBackward ? call_.grad_steps : call_.first_steps) = steps_of(query.in(kBackward ? 0 : 1));
    call_.to_steps = steps_of(query.out(0));
    for (int level = 0; level < call_.level_count; ++level) {
      const TensorType& type = query.in(2 + level);
      call_.level_steps[level] = steps_of(type);
      for (int d = 0; d < 2; ++d) call_.sizes[level][d] = type.shape[2 + d];
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CorrelationCall call = call_;
    call.flow = args.in<float>(kBackward ? 1 : 0);
    (kBackward ? call.grad : call.first) = args.in<float>(kBackward ? 0 : 1);
    for (int level = 0; level < call.level_count; ++level) call.levels[level] = args.in<float>(static_cast<size_t>(2 + level));
    call.to = args.out<float>(0);
    launch_elements(stream, kBackward ? "correlation_backward_first_values" : "correlation_values", elements_, call);
  }

 private:
  device::CorrelationCall call_;
  int64_t elements_;
};

class CorrelationBackwardLevel : public PreparedKernel {
 public:
  explicit CorrelationBackwardLevel(const KernelQuery& query)
      : call_(correlation_call(query.in(2).shape, query.attrs<CorrelationLookupBackwardAttrs>().radius, query.in(0).shape[1])),
        grads_(query.in(0).elements()),
        features_(query.in(2).elements()),
        sums_(query.out(0).elements()) {
    call_.level = static_cast<int>(query.attrs<CorrelationLookupBackwardAttrs>().level);
    for (int d = 0; d < 2; ++d) call_.sizes[call_.level][d] = query.out(0).shape[2 + d];
    call_.grad_steps = steps_of(query.in(0));
    call_.flow_steps = steps_of(query.in(1));
    call_.first_steps = steps_of(query.in(2));
    call_.to_steps = steps_of(query.out(0));
  }
  int64_t scratch_bytes() const override { return sums_.bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CorrelationCall call = call_;
    call.grad = args.in<float>(0);
    call.flow = args.in<float>(1);
    call.first = args.in<float>(2);
    call.sums = sums_.sums(args.scratch);
    call.largest = sums_.largest(args.scratch);
    sums_.begin(stream, args.scratch, call.grad, grads_);
    sums_.find(stream, args.scratch, call.first, features_, 1);
    launch_elements(stream, "correlation_backward_level_values", features_, call);
    sums_.end(stream, args.scratch, args.out<float>(0));
  }

 private:
  device::CorrelationCall call_;
  int64_t grads_, features_;
  FixedSums sums_;
};
Support supports_backward_level(const KernelQuery& query) {
  const auto& attrs = query.attrs<CorrelationLookupBackwardAttrs>();
  if (attrs.level >= device::kMostLevels) return Support::no(cat("more than ", device::kMostLevels, " levels"));
  return supports_images(query);
}

/// convex_upsample and its gradients.
template <bool kBackward>
class ConvexUpsample : public PreparedKernel {
 public:
  explicit ConvexUpsample(const KernelQuery& query) {
    const Shape& flow = query.in(kBackward ? 1 : 0).shape;
    call_.samples = flow[0];
    call_.channels = flow[1];
    call_.rows = flow[2];
    call_.columns = flow[3];
    call_.factor = query.attrs<ConvexUpsampleAttrs>().factor;
    call_.flow_steps = steps_of(query.in(kBackward ? 1 : 0));
    call_.mask_steps = steps_of(query.in(kBackward ? 2 : 1));
    call_.to_steps = steps_of(query.out(0));
    if constexpr (kBackward) {
      call_.grad_steps = steps_of(query.in(0));
      call_.mask_to_steps = steps_of(query.out(1));
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ConvexCall call = call_;
    if constexpr (kBackward) call.grad = args.in<float>(0);
    call.flow = args.in<float>(kBackward ? 1 : 0);
    call.mask = args.in<float>(kBackward ? 2 : 1);
    call.to = args.out<float>(0);
    const int64_t pixels = call.samples * call.rows * call.columns, fine = pixels * call.factor * call.factor;
    if constexpr (kBackward) {
      call.mask_to = args.out<float>(1);
      launch_elements(stream, "convex_backward_pixels", pixels * call.channels, call);
      launch_elements(stream, "convex_backward_logits", fine, call);
    } else {
      launch_elements(stream, "convex_pixels", fine, call);
    }
  }

 private:
  device::ConvexCall call_{};
};

class OrthonormalColumns : public PreparedKernel {
 public:
  explicit OrthonormalColumns(const KernelQuery& query) {
    call_.rows = query.in(0).shape[0];
    call_.columns = query.in(0).shape[1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ColumnsCall call = call_;
    call.from = args.in<float>(0);
    call.to = args.out<float>(0);
    cuda_launch(stream, "orthonormal_column_block", 1, call);
  }

 private:
  device::ColumnsCall call_{};
};

constexpr Kernel kKernels[] = {
    {"roi_align", "bins", supports_roi, prepare_cuda<RoiAlign<RoiAlignAttrs>>},
    {"roi_align_backward", "pixels", supports_roi, prepare_cuda<RoiAlign<RoiAlignBackwardAttrs>>},
    {"grid_sample", "pixels", supports, prepare_cuda<GridSample>},
    {"grid_sample_backward", "fixed_sums", supports, prepare_cuda<GridSampleBackward>},
    {"grid_sample_backward_grid", "points", supports, prepare_cuda<GridSampleBackwardGrid>},
    {"detach", "copy", supports_detach, prepare_cuda<Detach>},
    {"correlation_lookup", "values", supports_levels, prepare_cuda<Correlation<false>>},
    {"correlation_lookup_backward_first", "values", supports_levels, prepare_cuda<Correlation<true>>},
    {"correlation_lookup_backward_level", "fixed_sums", supports_backward_level, prepare_cuda<CorrelationBackwardLevel>},
    {"convex_upsample", "pixels", supports_images, prepare_cuda<ConvexUpsample<false>>},
    {"convex_upsample_backward", "pixels", supports_images, prepare_cuda<ConvexUpsample<true>>},
    {"orthonormal_columns", "block", supports, prepare_cuda<OrthonormalColumns>},
};

}  // namespace

std::span<const Kernel> cuda_sampling() { return kKernels; }

}  // namespace galley
