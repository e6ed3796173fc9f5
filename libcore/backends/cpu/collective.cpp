#include "libcore/backends/cpu/collective.h"

#include <array>
#include <cstring>

#include "libcore/base/parallel.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/collective.h"

namespace galley {
namespace {

constexpr int64_t kCopyGrain = 256 << 10;  // bytes per thread

/// Does nothing where the memory plan gave both the same memory.
void copy_all(const KernelArgs& args, int64_t bytes) {
  const auto* from = args.in<std::byte>(0);
  auto* to = args.out<std::byte>(0);
  if (from == to) return;
  parallel_for(bytes, kCopyGrain,
               [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
}

class AllReduceStart : public PreparedKernel {
 public:
  explicit AllReduceStart(const KernelQuery& q)
      : name_(q.attrs<CollectiveAttrs>().name), dtype_(q.in(0).dtype), count_(q.in(0).elements()) {}
  void run(Stream&, const KernelArgs& args) const override {
    copy_all(args, count_ * dtype_size(dtype_));
    if (RankScope* ranks = RankScope::current()) {
      void* array = args.outputs[0];
      ranks->start({.kind = CollectiveKind::kAllReduce, .dtype = dtype_, .name = name_, .input = array, .output = array, .count = count_});
    }
  }

 private:
  std::string name_;
  DType dtype_;
  int64_t count_;
};

class AllReduceWait : public PreparedKernel {
 public:
  explicit AllReduceWait(const KernelQuery& q) : bytes_(q.in(0).bytes()) {}
  void run(Stream&, const KernelArgs& args) const override {
    if (RankScope* ranks = RankScope::current()) ranks->wait(args.inputs[0]);
    copy_all(args, bytes_);
  }

 private:
  int64_t bytes_;
};

Support supports(const KernelQuery& q) {
  return is_reducible(q.in(0).dtype) ? Support::yes() : Support::no(cat("values of type ", q.in(0).dtype));
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{{{"all_reduce_start", "communicator", supports, prepare<AllReduceStart>},
                                      {"all_reduce_wait", "communicator", supports, prepare<AllReduceWait>}}};

}  // namespace

std::span<const Kernel> cpu_collective() { return kKernels; }

}  // namespace galley
