// Kernels of the element-wise functions and of their backward operators. Functions of one value run over arrays as they are in memory (none
// is blocked), those of two values over the rows that broadcasting leaves.

#include "libcore/ops/elementwise.h"

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/broadcast_walk.h"
#include "libcore/backends/cpu/elementwise_loops.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

using elementwise::FunctionLoops;
using elementwise::LoopNumbers;
using elementwise::Loops;
using elementwise::loops_of;

constexpr int64_t kGrain = 16384;

LoopNumbers loop_numbers(const Options* attributes) {
  LoopNumbers numbers{};
  const FunctionNumbers exact = function_numbers(attributes);
  for (size_t i = 0; i < exact.size(); ++i) numbers[i] = static_cast<float>(exact[i]);
  return numbers;
}

template <class T>
class Map : public PreparedKernel {
 public:
  Map(typename Loops<T>::Loop loop, int64_t count, LoopNumbers numbers) : loop_(loop), count_(count), numbers_(numbers) {}
  void run(Stream&, const KernelArgs& args) const override {
    const T* other = args.in<T>(1);
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      loop_(args.in<T>(0) + begin, other != nullptr ? other + begin : nullptr, args.out<T>(0) + begin, end - begin, numbers_);
    });
  }

 private:
  typename Loops<T>::Loop loop_;
  int64_t count_;
  LoopNumbers numbers_;
};

Support supports_map(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (!(q.out(0).format == x.format)) return Support::no("output in another format");
  if (q.has(1) && (q.in(1).dtype != x.dtype || !(q.in(1).format == x.format))) return Support::no("inputs of different formats");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare_map(const KernelQuery& q) {
  const Options* attributes = q.node.attributes.get();
  const ElementwiseRow* forward = find_elementwise(q.node.op->name);
  const ElementwiseRow& row = forward != nullptr ? *forward : *find_elementwise(q.node.op->name, true);
  const FunctionLoops& loops = loops_of(row.formula(attributes).function);
  const auto made = [&]<class T>(const Loops<T>& of) -> std::unique_ptr<PreparedKernel> {
    return std::make_unique<Map<T>>(forward != nullptr ? of.value : of.backward, q.in(0).elements(), loop_numbers(attributes));
  };
  return q.in(0).dtype == DType::kBF16 ? made(loops.narrow) : made(loops.wide);
}

template <class T>
class Zip : public PreparedKernel {
 public:
  Zip(const Loops<T>& loops, const KernelQuery& q) : walk_(q.context.inputs, q.out(0)), stepped_(loops.stepped) {
    const auto [a, b] = walk_.steps();
    if (a <= 1 && b <= 1 && a + b > 0) loop_ = loops.pairs[1 - a][1 - b];
  }
  void run(Stream&, const KernelArgs& args) const override {
    const T* a = args.in<T>(0);
    const T* b = args.in<T>(1);
    T* out = args.out<T>(0);
    walk_.run([&](const BroadcastWalk<2>::Steps& at, int64_t out_at, int64_t count) {
      if (loop_ != nullptr) return loop_(a + at[0], b + at[1], out + out_at, count, {});
      stepped_(a + at[0], walk_.steps()[0], b + at[1], walk_.steps()[1], out + out_at, count);
    });
  }

 private:
  BroadcastWalk<2> walk_;
  typename Loops<T>::Loop loop_ = nullptr;  // none: stepped_
  typename Loops<T>::SteppedLoop stepped_;
};

Support supports_zip(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->dtype != q.out(0).dtype || (type->dtype != DType::kF32 && type->dtype != DType::kBF16))
      return Support::no(cat("dtype ", type->dtype));
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare_zip(const KernelQuery& q) {
  const FunctionLoops& loops = loops_of(find_elementwise(q.node.op->name)->formulas.front().function);
  if (q.out(0).dtype == DType::kBF16) return std::make_unique<Zip<BFloat16>>(loops.narrow, q);
  return std::make_unique<Zip<float>>(loops.wide, q);
}

}  // namespace

void activate(Activation activation, float* y, int64_t count) {
  if (activation == Activation::kNone) return;
  loops_of(elementwise_row(activation).formulas.front().function).wide.value(y, nullptr, y, count, {});
}

std::span<const Kernel> cpu_elementwise() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (const OpDef* op : elementwise_ops()) {
      const ElementwiseRow* row = find_elementwise(op->name);
      const FunctionLoops& loops = loops_of((row != nullptr ? row : find_elementwise(op->name, true))->formulas.front().function);
      if (row == nullptr || loops.wide.value != nullptr) list.push_back({op->name, "map", supports_map, prepare_map});
      if (loops.wide.stepped != nullptr) list.push_back({op->name, "zip", supports_zip, prepare_zip});
    }
    return list;
  }();
  return kernels;
}

}  // namespace galley
