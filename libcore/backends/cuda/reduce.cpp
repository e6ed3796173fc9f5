// Reductions over axes, by the kernels of kernels/reduce.h.

#include "libcore/ops/reduce.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "libcore/backends/cuda/channel_walk.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

using device::ReduceCall;

/// The dimension of the output for each one of x; -1: it is reduced.
std::vector<int> kept_dimensions(const KernelQuery& query) {
  const TensorType &x = query.in(0), &y = query.out(0);
  const int rank = x.shape.rank(), more = rank - y.shape.rank();
  std::vector<int> kept(static_cast<size_t>(rank), -1);
  if (const auto* attrs = dynamic_cast<const ReduceAttrs*>(query.context.attributes)) {
    const std::vector<int> axes = axes_of(attrs->axes, x);
    for (int d = 0, before = 0; d < rank; ++d) {
      if (std::find(axes.begin(), axes.end(), d) != axes.end()) continue;
      kept[static_cast<size_t>(d)] = attrs->keepdim ? d : before;
      ++before;
    }
    return kept;
  }
  for (int d = more; d < rank; ++d)  // sum_to: dimensions that broadcasting added or extended are reduced
    if (y.shape[d - more] == x.shape[d]) kept[static_cast<size_t>(d)] = d - more;
  return kept;
}

/// Dimensions of x beside each other in memory that are all reduced, or all kept and written beside each other.
struct Run {
  bool reduced;
  int64_t size, step, to_step;
};
/// The dimensions of a reduction from outer to inner, in runs; sizes of 1 are left out.
std::vector<Run> runs_of(const KernelQuery& query) {
  const TensorType &x = query.in(0), &y = query.out(0);
  const std::vector<int> kept = kept_dimensions(query);
  const Shape steps = x.format.strides(x.shape), to_steps = y.format.strides(y.shape);
  std::vector<Run> dimensions;
  for (int d = 0; d < x.shape.rank(); ++d) {
    const int to = kept[static_cast<size_t>(d)];
    if (x.shape[d] != 1) dimensions.push_back({to < 0, x.shape[d], steps[d], to < 0 ? 0 : to_steps[to]});
  }
  std::stable_sort(dimensions.begin(), dimensions.end(), [](const Run& a, const Run& b) { return a.step > b.step; });
  std::vector<Run> runs;
  for (const Run& next : dimensions) {
    Run* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->reduced == next.reduced && last->step == next.step * next.size &&
        last->to_step == next.to_step * next.size) {
      *last = {next.reduced, last->size * next.size, next.step, next.to_step};
    } else {
      runs.push_back(next);
    }
  }
  return runs;
}

/// A reduction of views of channels: [batches, outer, channels, inner], of which outer and inner are reduced.
struct ChannelReduction {
  ChannelView view;
  int64_t batches = 1, batch_step = 0, to_batch = 0, to_channel = 0;
};
std::optional<ChannelReduction> channel_reduction(const KernelQuery& query) {
  const TensorType& x = query.in(0);
  if (!is_floating(x.dtype) || x.dtype == DType::kF64 || x.shape.elements() == 0) return std::nullopt;
  std::vector<Run> runs = runs_of(query);
  const auto next = [&](bool reduced) {  // the innermost run that is left, if it is such a one
    if (runs.empty() || runs.back().reduced != reduced) return Run{reduced, 1, 0, 0};
    const Run run = runs.back();
    runs.pop_back();
    return run;
  };
  const Run inner = next(true), channels = next(false), outer = next(true), batches = next(false);
  const ChannelReduction found{{outer.size, channels.size, inner.size}, batches.size, batches.step, batches.to_step, channels.to_step};
  const bool dense = (inner.size == 1 || inner.step == 1) && (channels.size == 1 || channels.step == inner.size) &&
                     (outer.size == 1 || outer.step == channels.size * inner.size);
  if (!runs.empty() || !dense || found.view.elements() >= kMostUnits || batches.size * channels.size >= kMostUnits) return std::nullopt;
  return found;
}

template <device::Reduction kKind>
class ReduceChannels : public PreparedKernel {
 public:
  explicit ReduceChannels(const KernelQuery& query) : found_(*channel_reduction(query)) {
    call_.type = type_of(query.in(0));
    call_.kind = kKind;
    call_.batches = static_cast<int>(found_.batches);
    call_.batch_step = found_.batch_step;
    call_.to_batch = found_.to_batch;
    call_.to_channel = found_.to_channel;
  }
  int64_t scratch_bytes() const override {
    const int64_t parts = std::max(walk(false).parts, walk(channels_fit_packs(found_.view)).parts);
    return parts == 1 ? 0 : static_cast<int64_t>(sizeof(float)) * parts * found_.batches * found_.view.channels;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ReduceChannelsCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    call.partial = static_cast<float*>(args.scratch);
    const bool batches_fit = found_.batches == 1 || found_.batch_step % device::kPack == 0;
    call.walk = walk(have_packs(call.from) && batches_fit && channels_fit_packs(found_.view));
    call.blocks = static_cast<int>(blocks_of(call.walk));
    cuda_launch(stream, "reduce_channels", int64_t{call.blocks} * call.batches, call);
    if (call.walk.parts > 1) cuda_launch(stream, "reduce_channel_parts", merging_blocks(found_.batches * found_.view.channels), call);
  }

 private:
  device::ChannelWalk walk(bool packs) const { return channel_walk(found_.view, packs, found_.batches, kSumLimits); }
  ChannelReduction found_;
  device::ReduceChannelsCall call_{};
};
Support supports_channels(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  if (query.in(0).dtype != query.out(0).dtype) return Support::no("operands of different dtypes");
  return channel_reduction(query) ? Support::yes() : Support::no("not a view of channels");
}

template <device::Reduction kKind>
class Reduce : public PreparedKernel {
 public:
  explicit Reduce(const KernelQuery& query) {
    const TensorType& x = query.in(0);
    const std::vector<int> kept = kept_dimensions(query);
    const Shape steps = x.format.strides(x.shape);
    call_.type = type_of(x);
    call_.kind = kKind;
    call_.reduced = 1;
    call_.outputs = 1;
    const TensorType& y = query.out(0);
    const Shape to_steps = y.format.strides(y.shape);
    for (int d = 0; d < x.shape.rank(); ++d) {
      const int to = kept[static_cast<size_t>(d)];
      if (to < 0) {
        call_.reduced_sizes[call_.reduced_dimensions] = x.shape[d];
        call_.reduced_steps[call_.reduced_dimensions++] = steps[d];
        call_.reduced *= x.shape[d];
      } else {
        call_.to_steps[call_.kept_dimensions] = to_steps[to];
        call_.kept_sizes[call_.kept_dimensions] = x.shape[d];
        call_.kept_steps[call_.kept_dimensions++] = steps[d];
        call_.outputs *= x.shape[d];
      }
    }
    constexpr int64_t kFewElements = 64;  // a block's tree would cost more than the sum
    by_blocks_ = call_.reduced >= kFewElements;
    const bool integer = !is_floating(x.dtype);
    name_ = by_blocks_ ? integer ? "reduce_blocks_integer" : "reduce_blocks" : integer ? "reduce_threads_integer" : "reduce_threads";
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ReduceCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, name_, by_blocks_ ? call.outputs * device::kThreads : call.outputs, call);
  }

 private:
  ReduceCall call_{};
  bool by_blocks_ = false;
  const char* name_ = "";
};

Support supports(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  if (query.in(0).dtype != query.out(0).dtype) return Support::no("operands of different dtypes");
  return Support::yes();
}

constexpr Kernel kKernels[] = {
    {"sum", "reduce_channels", supports_channels, prepare_cuda<ReduceChannels<device::kSum>>},
    {"amax", "reduce_channels", supports_channels, prepare_cuda<ReduceChannels<device::kMaximum>>},
    {"amin", "reduce_channels", supports_channels, prepare_cuda<ReduceChannels<device::kMinimum>>},
    {"sum", "reduce", supports, prepare_cuda<Reduce<device::kSum>>},
    {"amax", "reduce", supports, prepare_cuda<Reduce<device::kMaximum>>},
    {"amin", "reduce", supports, prepare_cuda<Reduce<device::kMinimum>>},
    {"sum_to", "reduce_channels", supports_channels, prepare_cuda<ReduceChannels<device::kSum>>},
    {"sum_to", "reduce", supports, prepare_cuda<Reduce<device::kSum>>},
};

}  // namespace

std::span<const Kernel> cuda_reduce() { return kKernels; }

}  // namespace galley
