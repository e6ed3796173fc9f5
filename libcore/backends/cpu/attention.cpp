// The tiled kernels of attention: memory, and which thread takes which rows. Storage is f32 or bf16, arithmetic f32.
//
// Forward: blocks of query rows are independent. Backward: dk and dv of a key head are sums over the rows of its query heads. One task
// takes them in order; where a batch has few key heads, a fixed number of tasks each take some of the rows, and their sums are added in
// order. That number depends on the shapes alone, so the bits do not depend on the threads.

#include "libcore/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/attention_tiles.h"
#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

using namespace attention_port;
using namespace attention_tiles;

/// Tasks of the backward pass below which the rows of a key head are divided. Each part costs an array of sums of all keys, so there are
/// not many.
constexpr int64_t kTasks = 16;
constexpr int64_t kPartRows = 4;  // blocks of rows of a part, at least

/// What is known before the run.
struct Plan {
  explicit Plan(const KernelQuery& q) : attrs(q.attrs<AttentionAttrs>()), threads(q.threads) {
    shape = attention_shape(attrs, q.in(kQ), q.has(kK) ? &q.in(kK) : nullptr, q.has(kV) ? &q.in(kV) : nullptr);
    problem.batch = shape.batch;
    problem.queries = shape.queries;
    problem.keys = shape.keys;
    problem.heads = shape.heads;
    problem.group = shape.group();
    problem.width = shape.width;
    problem.value_width = shape.value_width;
    problem.scale = static_cast<float>(shape.scale(attrs));
    problem.softcap = static_cast<float>(attrs.softcap);
    problem.causal = attrs.causal;
    problem.pad_queries = attrs.pad_queries;
    problem.window = attrs.window;
    problem.drops = attrs.dropout > 0;
    problem.first_head = attrs.first_head;
    problem.threshold = static_cast<int32_t>(std::ceil(attrs.dropout * 0x1p24));  // mask_keeps in integers
    problem.kept = static_cast<float>(mask_scale(attrs.dropout));
    problem.bias_sample = -1;
    if (q.has(kBias)) {
      const Shape& bias = q.in(kBias).shape;
      problem.bias_row = bias[2] > 1 ? bias[3] : 0;
      problem.bias_head = bias[1] > 1 ? bias[2] * bias[3] : 0;
      problem.biases = bias[0];
      problem.bias_sample = bias[0] > 1 ? bias[1] * bias[2] * bias[3] : 0;
    }
    sizes = sizes_of(problem);
    blocks = (shape.queries + sizes.rows - 1) / sizes.rows;
  }

  /// Heads from `first` on, in an array with that many heads.
  template <class T, class Address>
  Heads<T> heads(Address* array, int64_t rows, int64_t count, int64_t first, int64_t width) const {
    return {static_cast<T*>(array) + first * width, rows * count * width, count * width};
  }
  template <class T>
  Arrays<T> arrays(const KernelArgs& args) const {
    Arrays<T> a;
    const void *q = args.in<void>(kQ), *k = shape.arrays > 1 ? args.in<void>(kK) : q, *v = shape.arrays > 2 ? args.in<void>(kV) : k;
    a.q = heads<const T>(q, shape.queries, shape.q_heads, 0, shape.width);
    a.k = heads<const T>(k, shape.keys, shape.k_heads, shape.first_key, shape.width);
    a.v = heads<const T>(v, shape.keys, shape.v_heads, shape.first_value, shape.value_width);
    a.bias = args.in<float>(kBias);
    a.lengths = args.in<int64_t>(kLengths);
    a.position = args.in<int64_t>(kPosition);
    if (problem.drops) {
      const auto* rng = args.in<int64_t>(kRng);
      a.key = mask_key(rng[0], attrs.stream, rng[1]);
      a.first_sample = static_cast<uint64_t>(rng[2]);
    }
    return a;
  }

  AttentionAttrs attrs;
  int threads;
  AttentionShape shape;
  Problem problem{};
  Sizes sizes;
  int64_t blocks;  // of query rows
};

template <class T>
class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q) : plan_(q), count_(plan_.shape.batch * plan_.shape.heads * plan_.blocks) {}
  int64_t scratch_bytes() const override { return slots() * plan_.sizes.forward * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    Arrays<T> arrays = plan_.template arrays<T>(args);
    arrays.out = plan_.template heads<T>(args.out<void>(0), plan_.shape.queries, plan_.shape.heads, 0, plan_.shape.value_width);
    arrays.lse_out = args.out<float>(1);
    parallel_tasks(count_, slots(), [&](int64_t task, int64_t slot) {
      const int64_t head = task / plan_.blocks;
      const Rows rows{head / plan_.shape.heads, head % plan_.shape.heads, task % plan_.blocks * plan_.sizes.rows};
      forward(plan_.problem, arrays, rows, static_cast<float*>(args.scratch) + slot * plan_.sizes.forward);
    });
  }

 private:
  int64_t slots() const { return std::min<int64_t>(plan_.threads, count_); }
  Plan plan_;
  int64_t count_;
};

template <class T>
class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& q)
      : plan_(q), groups_(plan_.shape.batch * plan_.shape.kv_heads), rows_(plan_.shape.group() * plan_.blocks) {
    parts_ = std::clamp<int64_t>((kTasks + groups_ - 1) / groups_, 1, std::max<int64_t>(1, rows_ / kPartRows));
    if (plan_.attrs.bias_gradient) bias_shape_ = q.in(kBias).shape;
  }
  int64_t scratch_bytes() const override { return (slots() * plan_.sizes.backward + sums() * plan_.sizes.sums) * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    const AttentionShape& s = plan_.shape;
    Arrays<T> arrays = plan_.template arrays<T>(args);
    arrays.grad = plan_.template heads<const T>(args.in<void>(kGrad), s.queries, s.heads, 0, s.value_width);
    arrays.o = plan_.template heads<const T>(args.in<void>(kO), s.queries, s.heads, 0, s.value_width);
    arrays.lse = args.in<float>(kLse);
    arrays.grad_lse = args.in<float>(kGradLse);
    void *dq = args.out<void>(0), *dk = s.arrays > 1 ? args.out<void>(1) : dq, *dv = s.arrays > 2 ? args.out<void>(2) : dk;
    arrays.dq = plan_.template heads<T>(dq, s.queries, s.q_heads, 0, s.width);
    arrays.dk = plan_.template heads<T>(dk, s.keys, s.k_heads, s.first_key, s.width);
    arrays.dv = plan_.template heads<T>(dv, s.keys, s.v_heads, s.first_value, s.value_width);
    auto* memory = static_cast<float*>(args.scratch);
    run_sums(arrays, memory, memory + slots() * plan_.sizes.backward);
    if (plan_.attrs.bias_gradient) {
      arrays.dbias = args.out<float>(static_cast<size_t>(s.arrays));
      run_bias(arrays, memory);
    }
  }

 private:
  int64_t slots() const { return std::min<int64_t>(plan_.threads, groups_ * std::max(parts_, plan_.blocks)); }
  /// Arrays of sums: one for each thread, or, where parts are added, for each part.
  int64_t sums() const { return parts_ == 1 ? slots() : groups_ * parts_; }

  void run_sums(const Arrays<T>& arrays, float* memory, float* sums) const {
    const Problem& p = plan_.problem;
    const int64_t heads = plan_.shape.kv_heads, size = plan_.sizes.sums;
    parallel_tasks(groups_ * parts_, slots(), [&](int64_t task, int64_t slot) {
      const int64_t group = task / parts_, part = task % parts_, b = group / heads, g = group % heads;
      float* own = sums + (parts_ == 1 ? slot : task) * size;
      std::memset(own, 0, static_cast<size_t>(size) * sizeof(float));
      for (int64_t i = rows_ * part / parts_; i < rows_ * (part + 1) / parts_; ++i) {
        const Rows rows{b, g * p.group + i / plan_.blocks, i % plan_.blocks * plan_.sizes.rows};
        backward(p, arrays, rows, memory + slot * plan_.sizes.backward, own);
      }
      if (parts_ == 1) write_sums(p, arrays, b, g, own, 1);
    });
    if (parts_ == 1) return;
    parallel_tasks(groups_, slots(), [&](int64_t group, int64_t) {
      write_sums(p, arrays, group / heads, group % heads, sums + group * parts_ * size, parts_);
    });
  }

  /// A task owns a part of dbias, and adds to it for the samples and heads that share it, in order.
  void run_bias(const Arrays<T>& arrays, float* memory) const {
    const Problem& p = plan_.problem;
    const int64_t samples = bias_shape_[0], heads = bias_shape_[1], blocks = p.bias_row == 0 ? 1 : plan_.blocks;
    const int64_t each_sample = p.batch / samples, each_head = p.heads / heads;
    std::memset(arrays.dbias, 0, static_cast<size_t>(bias_shape_.elements()) * sizeof(float));
    parallel_tasks(samples * heads * blocks, slots(), [&](int64_t task, int64_t slot) {
      const int64_t block = task % blocks, head = task / blocks % heads, sample = task / blocks / heads;
      for (int64_t b = 0; b < each_sample; ++b) {
        for (int64_t h = 0; h < each_head; ++h) {
          for (int64_t i = block; i < (blocks == 1 ? plan_.blocks : block + 1); ++i) {
            const Rows rows{b * samples + sample, each_head == 1 ? head : h, i * plan_.sizes.rows};
            bias_backward(p, arrays, rows, memory + slot * plan_.sizes.bias);
          }
        }
      }
    });
  }

  Plan plan_;
  int64_t groups_, rows_, parts_;  // key heads of all samples; blocks of rows of each; tasks of each
  Shape bias_shape_;
};

Support supports(const KernelQuery& q) {
  if (!has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  const AttentionAlgorithm algorithm = q.attrs<AttentionAttrs>().algorithm;
  if (algorithm != AttentionAlgorithm::kAuto && algorithm != AttentionAlgorithm::kFlash)
    return Support::no(cat("the algorithm is ", kAttentionAlgorithmNames[static_cast<size_t>(algorithm)]));
  const DType dtype = q.in(kQ).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  if (q.has(kBias) && q.in(kBias).dtype != DType::kF32) return Support::no(cat("bias of dtype ", q.in(kBias).dtype));
  for (const auto* types : {&q.context.inputs, &q.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type == nullptr) continue;
      if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
      if (type->elements() == 0) return Support::no("empty array");
    }
  }
  return Support::yes();
}

template <template <class> class Run>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(kQ).dtype == DType::kBF16) return std::make_unique<Run<BFloat16>>(q);
  return std::make_unique<Run<float>>(q);
}

}  // namespace

const Algorithm algorithm::kAttentionFlash{supports, prepare<Forward>};
const Algorithm algorithm::kAttentionFlashBackward{supports, prepare<Backward>};

}  // namespace galley
