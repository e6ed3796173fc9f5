// Collectives between ranks, by the ranks' devices (comm/device_ranks.h). Without ranks: what one rank computes alone.

#include "libcore/ops/collective.h"

#include <string>

#include "libcore/backends/collective_part.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/base/error.h"
#include "libcore/comm/device_ranks.h"
#include "libcore/comm/rank_scope.h"

namespace galley {
namespace {

/// The devices of the ranks that the thread computes with; nullptr: it computes alone.
DeviceRanks* devices_of(RankAxis axis) {
  const RankScope* scope = RankScope::current(axis);
  if (scope == nullptr) return nullptr;
  GALLEY_ASSERT(scope->devices(axis) != nullptr, "the GPUs of the ranks are not connected");
  return scope->devices(axis);
}

/// Does nothing where the memory plan gave both the same memory.
void copy_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (to != from) stream.copy(to, from, bytes);
}

class AllReduceStart : public PreparedKernel {
 public:
  explicit AllReduceStart(const KernelQuery& q)
      : name_(q.attrs<CollectiveAttrs>().name), axis_(axis_of<CollectiveAttrs>(q)), type_(q.in(0)) {
    group_ = {static_cast<int>(q.attrs<CollectiveAttrs>().stride), static_cast<int>(q.attrs<CollectiveAttrs>().ranks)};
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    void* array = args.outputs[0];
    copy_bytes(stream, array, args.inputs[0], type_.bytes());
    DeviceRanks* ranks = devices_of(axis_);
    if (ranks == nullptr) return;
    ranks->start({.kind = CollectiveKind::kAllReduce,
                  .dtype = type_.dtype,
                  .name = name_,
                  .input = array,
                  .output = array,
                  .count = type_.elements(),
                  .group = group_},
                 stream);
  }

 private:
  std::string name_;
  RankAxis axis_;
  TensorType type_;
  RankGroup group_;
};

class BroadcastStart : public PreparedKernel {
 public:
  explicit BroadcastStart(const KernelQuery& q)
      : name_(q.attrs<BroadcastAttrs>().name), bytes_(q.in(0).bytes()), root_(static_cast<int>(q.attrs<BroadcastAttrs>().root)) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    void* array = args.outputs[0];
    copy_bytes(stream, array, args.inputs[0], bytes_);
    DeviceRanks* ranks = devices_of(RankAxis::kSamples);
    if (ranks == nullptr) return;
    ranks->start({.kind = CollectiveKind::kBroadcast,
                  .dtype = DType::kI8,
                  .name = name_,
                  .input = array,
                  .output = array,
                  .count = bytes_,
                  .peer = root_},
                 stream);
  }

 private:
  std::string name_;
  int64_t bytes_;
  int root_;
};

/// Of sums and of gathered parts.
template <class Attrs>
class WholeWait : public PreparedKernel {
 public:
  explicit WholeWait(const KernelQuery& q) : axis_(axis_of<Attrs>(q)), bytes_(q.in(0).bytes()) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    if (DeviceRanks* ranks = devices_of(axis_)) ranks->wait(args.inputs[0], stream);
    copy_bytes(stream, args.outputs[0], args.inputs[0], bytes_);
  }

 private:
  RankAxis axis_;
  int64_t bytes_;
};

class ReduceScatterStart : public PreparedKernel {
 public:
  explicit ReduceScatterStart(const KernelQuery& q) : part_(q, q.in(0).elements() / q.attrs<SegmentAttrs>().ranks) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* array = args.out<std::byte>(0);
    copy_bytes(stream, array, args.inputs[0], part_.count * dtype_size(part_.dtype));
    if (DeviceRanks* ranks = devices_of(part_.axis))
      ranks->start(part_.call(CollectiveKind::kReduceScatter, array, array + part_.begin), stream);
  }

 private:
  OwnPart part_;
};

class ReduceScatterWait : public PreparedKernel {
 public:
  explicit ReduceScatterWait(const KernelQuery& q) : part_(q, q.in(0).elements() / q.attrs<SegmentAttrs>().ranks) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    const auto* own = args.in<std::byte>(0) + part_.begin;
    if (DeviceRanks* ranks = devices_of(part_.axis)) ranks->wait(own, stream);
    copy_bytes(stream, args.outputs[0], own, part_.bytes);
  }

 private:
  OwnPart part_;
};

class AllGatherStart : public PreparedKernel {
 public:
  explicit AllGatherStart(const KernelQuery& q) : part_(q, q.in(0).elements()) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* array = args.out<std::byte>(0);
    DeviceRanks* ranks = devices_of(part_.axis);
    if (ranks == nullptr) stream.fill(array, 0, part_.count * dtype_size(part_.dtype));
    copy_bytes(stream, array + part_.begin, args.inputs[0], part_.bytes);
    if (ranks != nullptr) ranks->start(part_.call(CollectiveKind::kAllGather, array + part_.begin, array), stream);
  }

 private:
  OwnPart part_;
};

Support supports_sum(const KernelQuery& q) {
  const DType dtype = q.in(0).dtype;
  if (dtype == DType::kBool || dtype == DType::kI16) return Support::no(cat("values of type ", dtype));
  return Support::yes();
}
Support any(const KernelQuery&) { return Support::yes(); }

constexpr Kernel kKernels[] = {
    {"all_reduce_start", "nccl", supports_sum, prepare_cuda<AllReduceStart>},
    {"all_reduce_wait", "nccl", supports_sum, prepare_cuda<WholeWait<CollectiveAttrs>>},
    {"reduce_scatter_start", "nccl", supports_sum, prepare_cuda<ReduceScatterStart>},
    {"reduce_scatter_wait", "nccl", supports_sum, prepare_cuda<ReduceScatterWait>},
    {"all_gather_start", "nccl", any, prepare_cuda<AllGatherStart>},
    {"all_gather_wait", "nccl", any, prepare_cuda<WholeWait<SegmentAttrs>>},
    {"broadcast_start", "nccl", any, prepare_cuda<BroadcastStart>},
    {"broadcast_wait", "nccl", any, prepare_cuda<WholeWait<BroadcastAttrs>>},
};

}  // namespace

std::span<const Kernel> cuda_collective() { return kKernels; }

}  // namespace galley
