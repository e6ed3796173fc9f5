#include "libcore/backends/cpu/collective.h"

#include <array>
#include <cstring>

#include "libcore/backends/collective_part.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/collective.h"

namespace galley {
namespace {

constexpr int64_t kCopyGrain = 256 << 10;  // bytes per thread

/// Does nothing where the memory plan gave both the same memory.
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (from == to) return;
  parallel_for(bytes, kCopyGrain,
               [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
}
void copy_all(const KernelArgs& args, int64_t bytes) { copy_bytes(args.out<std::byte>(0), args.in<std::byte>(0), bytes); }

class AllReduceStart : public PreparedKernel {
 public:
  explicit AllReduceStart(const KernelQuery& q)
      : name_(q.attrs<CollectiveAttrs>().name),
        axis_(axis_of<CollectiveAttrs>(q)),
        dtype_(q.in(0).dtype),
        count_(q.in(0).elements()),
        group_{static_cast<int>(q.attrs<CollectiveAttrs>().stride), static_cast<int>(q.attrs<CollectiveAttrs>().ranks)} {}
  void run(Stream&, const KernelArgs& args) const override {
    copy_all(args, count_ * dtype_size(dtype_));
    if (RankScope* ranks = RankScope::current(axis_)) {
      void* array = args.outputs[0];
      ranks->start({.kind = CollectiveKind::kAllReduce,
                    .dtype = dtype_,
                    .name = name_,
                    .input = array,
                    .output = array,
                    .count = count_,
                    .group = group_},
                   axis_);
    }
  }

 private:
  std::string name_;
  RankAxis axis_;
  DType dtype_;
  int64_t count_;
  RankGroup group_;
};

class BroadcastStart : public PreparedKernel {
 public:
  explicit BroadcastStart(const KernelQuery& q)
      : name_(q.attrs<BroadcastAttrs>().name), bytes_(q.in(0).bytes()), root_(static_cast<int>(q.attrs<BroadcastAttrs>().root)) {}
  void run(Stream&, const KernelArgs& args) const override {
    copy_all(args, bytes_);
    if (RankScope* ranks = RankScope::current()) {
      void* array = args.outputs[0];
      ranks->start({.kind = CollectiveKind::kBroadcast,
                    .dtype = DType::kI8,
                    .name = name_,
                    .input = array,
                    .output = array,
                    .count = bytes_,
                    .peer = root_});
    }
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
  void run(Stream&, const KernelArgs& args) const override {
    if (RankScope* ranks = RankScope::current(axis_)) ranks->wait(args.inputs[0]);
    copy_all(args, bytes_);
  }

 private:
  RankAxis axis_;
  int64_t bytes_;
};

class ReduceScatterStart : public PreparedKernel {
 public:
  explicit ReduceScatterStart(const KernelQuery& q) : part_(q, q.in(0).elements() / q.attrs<SegmentAttrs>().ranks) {}
  void run(Stream&, const KernelArgs& args) const override {
    copy_all(args, part_.count * dtype_size(part_.dtype));
    if (RankScope* ranks = RankScope::current(part_.axis)) {
      auto* array = args.out<std::byte>(0);
      ranks->start(part_.call(CollectiveKind::kReduceScatter, array, array + part_.begin), part_.axis);
    }
  }

 private:
  OwnPart part_;
};

class ReduceScatterWait : public PreparedKernel {
 public:
  explicit ReduceScatterWait(const KernelQuery& q) : part_(q, q.in(0).elements() / q.attrs<SegmentAttrs>().ranks) {}
  void run(Stream&, const KernelArgs& args) const override {
    const auto* own = args.in<std::byte>(0) + part_.begin;
    if (RankScope* ranks = RankScope::current(part_.axis)) ranks->wait(own);
    copy_bytes(args.out<std::byte>(0), own, part_.bytes);
  }

 private:
  OwnPart part_;
};

class AllGatherStart : public PreparedKernel {
 public:
  explicit AllGatherStart(const KernelQuery& q) : part_(q, q.in(0).elements()), common_(q.attrs<SegmentAttrs>().common) {}
  void run(Stream&, const KernelArgs& args) const override {
    auto* array = args.out<std::byte>(0);
    RankScope* ranks = RankScope::current(part_.axis);
    // Other ranks may read what the memory held before, until all have started.
    if (ranks != nullptr && common_) return ranks->start(part_.call(CollectiveKind::kAllGather, args.in<std::byte>(0), array), part_.axis);
    if (ranks == nullptr) std::memset(array, 0, static_cast<size_t>(part_.count * dtype_size(part_.dtype)));
    copy_bytes(array + part_.begin, args.in<std::byte>(0), part_.bytes);
    if (ranks == nullptr) return;
    ranks->start(part_.call(CollectiveKind::kAllGather, array + part_.begin, array), part_.axis);
  }

 private:
  OwnPart part_;
  bool common_;
};

Support supports(const KernelQuery& q) {
  return is_reducible(q.in(0).dtype) ? Support::yes() : Support::no(cat("values of type ", q.in(0).dtype));
}

Support any(const KernelQuery&) { return Support::yes(); }

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 8> kKernels{{{"all_reduce_start", "communicator", supports, prepare<AllReduceStart>},
                                      {"all_reduce_wait", "communicator", supports, prepare<WholeWait<CollectiveAttrs>>},
                                      {"reduce_scatter_start", "communicator", supports, prepare<ReduceScatterStart>},
                                      {"reduce_scatter_wait", "communicator", supports, prepare<ReduceScatterWait>},
                                      {"all_gather_start", "communicator", supports, prepare<AllGatherStart>},
                                      {"all_gather_wait", "communicator", supports, prepare<WholeWait<SegmentAttrs>>},
                                      {"broadcast_start", "communicator", any, prepare<BroadcastStart>},
                                      {"broadcast_wait", "communicator", any, prepare<WholeWait<BroadcastAttrs>>}}};

}  // namespace

std::span<const Kernel> cpu_collective() { return kKernels; }

}  // namespace galley
