// Attention and its gradients, by cuDNN's fused engines, or the kernels of kernels/attention_tiles.h.

#include "libcore/ops/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cuda/library_attention.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

using namespace attention_port;

constexpr int64_t kMostWidth = 256;  // the kernels keep results of a thread in registers

Support supports(const KernelQuery& q) {
  const auto& attrs = q.attrs<AttentionAttrs>();
  if (attrs.algorithm != AttentionAlgorithm::kAuto && attrs.algorithm != AttentionAlgorithm::kFlash)
    return Support::no(cat("the algorithm is ", kAttentionAlgorithmNames[static_cast<size_t>(attrs.algorithm)]));
  const DType dtype = q.in(kQ).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) return Support::no(cat("dtype ", dtype));
  const AttentionShape s = attention_shape(attrs, q.in(kQ), q.has(kK) ? &q.in(kK) : nullptr, q.has(kV) ? &q.in(kV) : nullptr);
  if (std::max(s.width, s.value_width) > kMostWidth) return Support::no(cat("heads of more than ", kMostWidth, " elements"));
  if (q.has(kBias) && q.in(kBias).dtype == DType::kF64) return Support::no("a bias in f64");
  for (const auto* types : {&q.context.inputs, &q.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type != nullptr && type->elements() == 0) return Support::no("empty array");
    }
  }
  return only_contiguous(q);
}

/// What both operators share.
class Tiles : public PreparedKernel {
 public:
  explicit Tiles(const KernelQuery& q) {
    const auto& attrs = q.attrs<AttentionAttrs>();
    shape_ = attention_shape(attrs, q.in(kQ), q.has(kK) ? &q.in(kK) : nullptr, q.has(kV) ? &q.in(kV) : nullptr);
    call_.type = type_of(q.in(kQ));
    call_.batch = shape_.batch;
    call_.queries = shape_.queries;
    call_.keys = shape_.keys;
    call_.heads = shape_.heads;
    call_.kv_heads = shape_.kv_heads;
    call_.width = shape_.width;
    call_.value_width = shape_.value_width;
    call_.q_heads = shape_.q_heads;
    call_.k_heads = shape_.k_heads;
    call_.v_heads = shape_.v_heads;
    call_.first_key = shape_.first_key;
    call_.first_value = shape_.first_value;
    call_.window = attrs.window;
    call_.causal = attrs.causal;
    call_.pad_queries = attrs.pad_queries;
    call_.scale = static_cast<float>(shape_.scale(attrs));
    call_.softcap = static_cast<float>(attrs.softcap);
    call_.drops = attrs.dropout > 0;
    call_.stream = attrs.stream;
    call_.first_head = attrs.first_head;
    call_.least = static_cast<uint32_t>(std::ceil(attrs.dropout * 0x1p24));  // mask_keeps in integers
    call_.kept = static_cast<float>(mask_scale(attrs.dropout));
    if (q.has(kBias)) {
      call_.bias_type = type_of(q.in(kBias));
      call_.bias_samples = q.in(kBias).shape[0];
      call_.bias_heads = q.in(kBias).shape[1];
      call_.bias_rows = q.in(kBias).shape[2];
    }
  }

 protected:
  device::AttentionCall bound(const KernelArgs& args) const {
    device::AttentionCall call = call_;
    call.q = args.inputs[kQ];
    call.k = shape_.arrays > 1 ? args.inputs[kK] : call.q;
    call.v = shape_.arrays > 2 ? args.inputs[kV] : call.k;
    call.bias = args.in<void>(kBias);
    call.lengths = args.in<int64_t>(kLengths);
    call.position = args.in<int64_t>(kPosition);
    call.rng = args.in<int64_t>(kRng);
    return call;
  }
  /// Starts the form of a kernel for the width of the heads, with a block for each of `heads` of all samples and `rows` rows.
  void start(Stream& stream, const std::string& kernel, int64_t heads, int64_t rows, int64_t tile,
             const device::AttentionCall& call) const {
    const int64_t blocks = shape_.batch * heads * ((rows + tile - 1) / tile);
    launch_elements(stream, cat(kernel, "_", wide()).c_str(), blocks * device::kThreads, call);
  }
  int wide() const {
    const int64_t width = std::max(shape_.width, shape_.value_width);
    return width <= 64 ? 64 : width <= 128 ? 128 : 256;
  }

  AttentionShape shape_;
  device::AttentionCall call_{};
};

constexpr int64_t kTile = 64;  // rows

class Attention : public Tiles {
 public:
  using Tiles::Tiles;
  void run(Stream& stream, const KernelArgs& args) const override {
    device::AttentionCall call = bound(args);
    call.to = args.outputs[0];
    call.lse_to = args.out<float>(1);
    start(stream, "attention", shape_.heads, shape_.queries, kTile, call);
  }
};

class AttentionBackward : public Tiles {
 public:
  explicit AttentionBackward(const KernelQuery& q) : Tiles(q), bias_gradient_(q.attrs<AttentionAttrs>().bias_gradient) {}
  int64_t scratch_bytes() const override { return 4 * shape_.batch * shape_.heads * shape_.queries; }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::AttentionCall call = bound(args);
    call.grad = args.inputs[kGrad];
    call.o = args.inputs[kO];
    call.lse = args.in<float>(kLse);
    call.grad_lse = args.in<float>(kGradLse);
    call.along = static_cast<float*>(args.scratch);
    call.dq = args.outputs[0];
    call.dk = shape_.arrays > 1 ? args.outputs[1] : call.dq;
    call.dv = shape_.arrays > 2 ? args.outputs[2] : call.dk;
    launch_elements(stream, "attention_along", shape_.batch * shape_.heads * shape_.queries * kWarp, call);
    const int64_t tile = wide() == 256 ? kTile / 2 : kTile;
    start(stream, "attention_queries", shape_.heads, shape_.queries, tile, call);
    start(stream, "attention_keys", shape_.kv_heads, shape_.keys, tile, call);
    if (!bias_gradient_) return;
    call.dbias = args.outputs[static_cast<size_t>(shape_.arrays)];
    const int64_t tiles = call.bias_samples * call.bias_heads * ((call.bias_rows + kTile - 1) / kTile) * ((call.keys + kTile - 1) / kTile);
    launch_elements(stream, "attention_bias", tiles * device::kThreads, call);
  }

 private:
  static constexpr int64_t kWarp = 32;
  bool bias_gradient_;
};

/// What the library is asked for; empty reason: it may be asked.
template <bool kBackward, bool kDeterministic>
AttentionForm form_of(const KernelQuery& q, std::string& reason) {
  const auto& attrs = q.attrs<AttentionAttrs>();
  const AttentionShape s = attention_shape(attrs, q.in(kQ), q.has(kK) ? &q.in(kK) : nullptr, q.has(kV) ? &q.in(kV) : nullptr);
  AttentionForm form{.backward = kBackward, .dtype = q.in(kQ).dtype, .batch = s.batch, .heads = s.heads, .kv_heads = s.kv_heads};
  form.queries = s.queries;
  form.keys = s.keys;
  form.width = s.width;
  form.value_width = s.value_width;
  form.causal = attrs.causal;
  form.deterministic = kDeterministic;
  const auto set = [](int64_t* steps, int64_t rows, int64_t heads, int64_t width) {
    steps[0] = rows * heads * width;
    steps[1] = width;
    steps[2] = heads * width;
  };
  set(form.q_steps, s.queries, s.q_heads, s.width);
  set(form.k_steps, s.keys, s.k_heads, s.width);
  set(form.v_steps, s.keys, s.v_heads, s.value_width);
  const std::pair<bool, const char*> rows[] = {
      {q.has(kBias), "a bias"},       {q.has(kLengths), "lengths"},   {q.has(kPosition), "positions"},       {attrs.dropout > 0, "dropout"},
      {attrs.window > 0, "a window"}, {attrs.softcap > 0, "softcap"}, {q.has(kGradLse), "a gradient of lse"}};
  for (const auto& [present, name] : rows)
    if (present) reason = cat("cuDNN is not asked for ", name);
  return form;
}

template <bool kBackward, bool kDeterministic>
Support supports_library(const KernelQuery& q) {
  if (const Support own = supports(q); !own) return own;
  std::string reason;
  const AttentionForm form = form_of<kBackward, kDeterministic>(q, reason);
  if (!reason.empty()) return Support::no(reason);
  return library_attention(gpu_of(q), form, reason) != nullptr ? Support::yes() : Support::no(reason);
}

/// By cuDNN.
template <bool kBackward, bool kDeterministic>
class FromLibrary : public PreparedKernel {
 public:
  explicit FromLibrary(const KernelQuery& q)
      : shape_(attention_shape(q.attrs<AttentionAttrs>(), q.in(kQ), q.has(kK) ? &q.in(kK) : nullptr, q.has(kV) ? &q.in(kV) : nullptr)),
        scale_(static_cast<float>(shape_.scale(q.attrs<AttentionAttrs>()))) {
    std::string reason;
    plan_ = library_attention(gpu_of(q), form_of<kBackward, kDeterministic>(q, reason), reason);
    GALLEY_ASSERT(plan_ != nullptr, reason);
  }
  int64_t scratch_bytes() const override { return plan_->scratch_bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    AttentionOperands at{.scale = scale_};
    const void *q = args.inputs[kQ], *k = shape_.arrays > 1 ? args.inputs[kK] : q, *v = shape_.arrays > 2 ? args.inputs[kV] : k;
    at.q = q;
    at.k = key_heads(const_cast<void*>(k));
    at.v = value_heads(const_cast<void*>(v));
    if constexpr (kBackward) {
      at.o = const_cast<void*>(args.inputs[kO]);
      at.lse = const_cast<void*>(args.inputs[kLse]);
      at.grad = args.inputs[kGrad];
      void *dq = args.outputs[0], *dk = shape_.arrays > 1 ? args.outputs[1] : dq, *dv = shape_.arrays > 2 ? args.outputs[2] : dk;
      at.dq = dq;
      at.dk = key_heads(dk);
      at.dv = value_heads(dv);
    } else {
      at.o = args.outputs[0];
      at.lse = args.outputs[1];
    }
    plan_->run(stream, at, args.scratch);
  }

 private:
  static constexpr int64_t kBytes = 2;  // of an element
  void* key_heads(void* array) const { return static_cast<std::byte*>(array) + kBytes * shape_.first_key * shape_.width; }
  void* value_heads(void* array) const { return static_cast<std::byte*>(array) + kBytes * shape_.first_value * shape_.value_width; }

  AttentionShape shape_;
  float scale_;
  std::shared_ptr<const LibraryAttention> plan_;
};

template <bool kDeterministic>
constexpr std::array<Kernel, 2> kLibrary{
    {{"attention", "cudnn", supports_library<false, kDeterministic>, prepare_cuda<FromLibrary<false, kDeterministic>>},
     {"attention_backward", "cudnn", supports_library<true, kDeterministic>, prepare_cuda<FromLibrary<true, kDeterministic>>}}};
constexpr Kernel kKernels[] = {{"attention", "tiles", supports, prepare_cuda<Attention>},
                               {"attention_backward", "tiles", supports, prepare_cuda<AttentionBackward>}};

}  // namespace

std::span<const Kernel> cuda_attention() { return kKernels; }
std::span<const Kernel> cuda_library_attention(bool deterministic) { return deterministic ? kLibrary<true> : kLibrary<false>; }

}  // namespace galley
