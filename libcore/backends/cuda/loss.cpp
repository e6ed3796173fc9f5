// Cross entropy, sums of squares, embeddings and their gradients, by the kernels of kernels/loss.h and kernels/embedding.h.

#include "libcore/ops/loss.h"

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

bool computes_in_float(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }

/// Forward: logits, target, weight -> loss. Backward: grad, logits, target, weight -> gradient of the logits.
template <bool kBackward>
Support supports_cross_entropy(const KernelQuery& query) {
  constexpr int kLogits = kBackward ? 1 : 0;
  const TensorType &logits = query.in(kLogits), &target = query.in(kLogits + 1);
  if (!computes_in_float(logits.dtype)) return Support::no(cat("dtype ", logits.dtype));
  if (is_floating(target.dtype)) return Support::no("probabilities as targets");
  if (logits.shape[1] == 0) return Support::no("no classes");
  if (query.has(kLogits + 2) && !computes_in_float(query.in(kLogits + 2).dtype)) return Support::no("weights of another kind");
  const DType loss = query.node.op->made_by_rewrite ? DType::kF32 : logits.dtype;  // mixed_loss.h
  if ((kBackward ? query.in(0) : query.out(0)).dtype != loss || (kBackward && query.out(0).dtype != logits.dtype))
    return Support::no("operands of different dtypes");
  return only_contiguous(query);
}

template <bool kBackward>
class CrossEntropy : public PreparedKernel {
 public:
  explicit CrossEntropy(const KernelQuery& query) {
    constexpr int kLogits = kBackward ? 1 : 0;
    const auto& attrs = query.attrs<CrossEntropyAttrs>();
    const Shape& shape = query.in(kLogits).shape;
    call_.type = type_of(query.in(kLogits));
    call_.target_type = type_of(query.in(kLogits + 1));
    call_.weight_type = query.has(kLogits + 2) ? type_of(query.in(kLogits + 2)) : device::kF32;
    call_.loss_type = type_of(kBackward ? query.in(0) : query.out(0));
    call_.classes = shape[1];
    call_.positions = shape.elements() / shape[1];
    call_.inner = shape[0] == 0 ? 1 : call_.positions / shape[0];
    call_.ignored = attrs.ignore_index;
    call_.smoothing = static_cast<float>(attrs.label_smoothing);
    call_.mean = attrs.reduction == Reduction::kMean;
    call_.each = attrs.reduction == Reduction::kNone;
  }
  int64_t scratch_bytes() const override {
    if (kBackward) return 4;
    return call_.each != 0 ? 0 : 4 * std::max<int64_t>(1, 2 * call_.positions);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CrossEntropyCall call = call_;
    constexpr size_t kLogits = kBackward ? 1 : 0;
    call.grad = args.inputs[0];
    call.logits = args.inputs[kLogits];
    call.target = args.inputs[kLogits + 1];
    call.weight = args.in<void>(kLogits + 2);
    call.to = args.outputs[0];
    call.sums = static_cast<float*>(args.scratch);
    const int64_t threads = call.positions * device::kThreads;
    const auto place_in_word = [](const void* array) { return reinterpret_cast<uintptr_t>(array) % 16; };
    if (kBackward) {
      if (call.mean != 0) launch_elements(stream, "cross_entropy_weights", device::kThreads, call);
      if (call.inner != 1 || place_in_word(call.to) != place_in_word(call.logits))
        return launch_elements(stream, "cross_entropy_backward_positions", threads, call);
      // The logits of a row are read twice: few enough rows at once to stay in the second-level cache of about 50 MB.
      const int64_t processors = static_cast<CudaDevice&>(stream.device()).facts().processors;
      const int64_t row_bytes = call.classes * dtype_size(static_cast<DType>(call.type)) * processors;
      const int64_t blocks = processors * std::clamp<int64_t>((int64_t{64} << 20) / row_bytes, 1, 8);
      return cuda_launch(stream, "cross_entropy_backward_rows", std::min(blocks, call.positions), call);
    }
    if (call.each != 0) call.sums = nullptr;
    if (call.inner == 1) {
      cuda_launch(stream, "cross_entropy_rows", std::min<int64_t>(call.positions, 1 << 20), call);
    } else {
      launch_elements(stream, "cross_entropy_positions", threads, call);
    }
    if (call.each == 0) launch_elements(stream, "cross_entropy_total", device::kThreads, call);
  }

 private:
  device::CrossEntropyCall call_{};
};

Support supports_embedding(const KernelQuery& query) {
  if (!computes_in_float(query.in(0).dtype) || !computes_in_float(query.out(0).dtype)) return Support::no(cat("dtype ", query.in(0).dtype));
  // The blocks of embedding_ranks are fewer than 2^31; tokens that are so many would take seconds.
  if (query.in(1).elements() >= int64_t{1} << 23 || query.out(0).shape[0] >= int64_t{1} << 31)
    return Support::no("2^23 tokens, or 2^31 rows");
  return only_contiguous(query);
}

/// weight [rows, width], index -> y [..., width].
class Embedding : public PreparedKernel {
 public:
  explicit Embedding(const KernelQuery& query) : row_bytes_(query.in(0).shape[1] * dtype_size(query.in(0).dtype)) {
    call_.index_type = type_of(query.in(1));
    call_.tokens = query.in(1).elements();
    call_.rows = query.in(0).shape[0];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::EmbeddingLookupCall call = call_;
    call.table = args.inputs[0];
    call.index = args.inputs[1];
    call.to = args.outputs[0];
    const auto addresses = reinterpret_cast<uintptr_t>(call.table) | reinterpret_cast<uintptr_t>(call.to);
    const auto fits = [&](int64_t word) { return row_bytes_ % word == 0 && addresses % static_cast<uintptr_t>(word) == 0; };
    const int64_t word = fits(16) ? 16 : fits(4) ? 4 : 2;
    call.words = row_bytes_ / word;
    launch_elements(stream,
                    word == 16  ? "embedding_words_16"
                    : word == 4 ? "embedding_words_4"
                                : "embedding_words_2",
                    call.tokens * call.words, call);
  }
  static Support supports(const KernelQuery& query) {
    if (dtype_size(query.in(0).dtype) < 2) return Support::no(cat("dtype ", query.in(0).dtype));
    return only_contiguous(query);
  }

 private:
  device::EmbeddingLookupCall call_{};
  int64_t row_bytes_;
};

/// grad [..., width], index -> the gradient of the table.
class EmbeddingBackward : public PreparedKernel {
 public:
  explicit EmbeddingBackward(const KernelQuery& query) {
    call_.type = type_of(query.in(0));
    call_.index_type = type_of(query.in(1));
    call_.to_type = type_of(query.out(0));
    call_.tokens = query.in(1).elements();
    call_.rows = query.out(0).shape[0];
    call_.width = query.out(0).shape[1];
  }
  int64_t scratch_bytes() const override { return 4 * (2 * call_.rows + 1 + 2 * call_.tokens); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::EmbeddingCall call = call_;
    call.grad = args.inputs[0];
    call.index = args.inputs[1];
    call.to = args.outputs[0];
    call.counts = static_cast<unsigned*>(args.scratch);
    call.ranks = call.counts + call.rows;
    call.cursor = call.ranks + call.tokens;
    call.begins = call.cursor + 1;
    call.order = call.begins + call.rows;
    stream.fill(call.counts, 0, 4 * (call.rows + call.tokens + 1));
    const int64_t tiles = (call.tokens + device::kThreads - 1) / device::kThreads;
    cuda_launch(stream, "embedding_ranks", tiles * (tiles + 1) / 2, call);
    cuda_launch(stream, "embedding_begins", (call.rows + device::kThreads - 1) / device::kThreads, call);
    launch_elements(stream, "embedding_order", call.tokens, call);
    const bool packs = call.width % 8 == 0 && have_packs(call.grad, call.to);
    launch_elements(stream, packs ? "embedding_packs" : "embedding_rows", call.rows * device::kThreads, call);
  }

 private:
  device::EmbeddingCall call_{};
};

Support supports_squares(const KernelQuery& query) {
  for (const TensorType* type : query.context.inputs) {
    if (!computes_in_float(type->dtype)) return Support::no(cat("dtype ", type->dtype));
    if (type->format.is_blocked()) return Support::no("a blocked format");
  }
  return query.out(0).dtype == DType::kF32 ? Support::yes() : Support::no("a result other than f32");
}

/// The sum of the squares of any number of arrays, a launch for each kMostSquares of them.
class SumSquares : public PreparedKernel {
 public:
  explicit SumSquares(const KernelQuery& query) {
    constexpr int64_t kPart = 64 << 10;
    for (const TensorType* type : query.context.inputs) {
      if (calls_.empty() || calls_.back().arrays == device::kMostSquares) calls_.push_back({.begin = parts_, .part_size = kPart});
      device::SquaresCall& call = calls_.back();
      const int64_t parts = (type->elements() + kPart - 1) / kPart;
      call.types[call.arrays] = type_of(*type);
      call.elements[call.arrays] = type->elements();
      call.first_part[call.arrays++] = parts_;
      call.parts += parts;
      parts_ += parts;
    }
  }
  int64_t scratch_bytes() const override { return 8 * std::max<int64_t>(1, parts_); }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* sums = static_cast<double*>(args.scratch);
    size_t next = 0;
    for (device::SquaresCall call : calls_) {
      for (int i = 0; i < call.arrays; ++i) call.from[i] = args.inputs[next++];
      call.sums = sums;
      launch_elements(stream, "square_parts", call.parts * device::kThreads, call);
    }
    const device::SquaresCall total{.to = args.outputs[0], .sums = sums, .parts = parts_};
    launch_elements(stream, "square_total", device::kThreads, total);
  }

 private:
  std::vector<device::SquaresCall> calls_;
  int64_t parts_ = 0;
};

constexpr Kernel kKernels[] = {
    {"cross_entropy", "positions", supports_cross_entropy<false>, prepare_cuda<CrossEntropy<false>>},
    {"cross_entropy_backward", "positions", supports_cross_entropy<true>, prepare_cuda<CrossEntropy<true>>},
    {"mixed_cross_entropy", "positions", supports_cross_entropy<false>, prepare_cuda<CrossEntropy<false>>},
    {"mixed_cross_entropy_backward", "positions", supports_cross_entropy<true>, prepare_cuda<CrossEntropy<true>>},
    {"embedding", "words", Embedding::supports, prepare_cuda<Embedding>},
    {"embedding_backward", "sorted", supports_embedding, prepare_cuda<EmbeddingBackward>},
    {"sum_squares", "parts", supports_squares, prepare_cuda<SumSquares>},
};

}  // namespace

std::span<const Kernel> cuda_loss() { return kKernels; }

}  // namespace galley
