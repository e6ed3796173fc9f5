// Attention with a cache, by the kernels of kernels/attention.h.

#include "libcore/ops/cached_attention.h"

#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

using namespace cached_attention_port;

class CachedAttention : public PreparedKernel {
 public:
  explicit CachedAttention(const KernelQuery& query) {
    const auto& attrs = query.attrs<CachedAttentionAttrs>();
    const CachedAttentionShape s = cached_attention_shape(query.context);
    packed_ = s.packed;
    call_.type = type_of(query.in(kQ));
    call_.cache_type = type_of(query.in(kCache));
    call_.batch = s.batch;
    call_.tokens = s.tokens;
    call_.heads = s.heads;
    call_.kv_heads = s.kv_heads;
    call_.width = s.width;
    call_.capacity = s.capacity;
    call_.q_heads = s.q_heads;
    call_.new_heads = s.new_heads;
    call_.first_key = s.first_key;
    call_.first_value = s.first_value;
    call_.reach = s.reach(attrs);
    call_.scale = static_cast<float>(s.scale(attrs));
  }
  int64_t scratch_bytes() const override { return 4 * (stored_elements() + call_.batch * call_.tokens * call_.heads * call_.reach); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CachedAttentionCall call = call_;
    call.q = args.inputs[kQ];
    call.k = packed_ ? call.q : args.inputs[kK];
    call.v = packed_ ? call.q : args.inputs[kV];
    call.position = args.in<int64_t>(kPosition);
    call.last = args.in<int64_t>(kLast);
    call.to = args.outputs[0];
    call.cache = args.outputs[1];  // in place
    call.scales = args.outputs.size() > 2 ? args.out<float>(2) : nullptr;
    call.stored = static_cast<float*>(args.scratch);
    call.scores = call.stored + stored_elements();
    const int64_t new_heads = call.batch * call.tokens * 2 * call.kv_heads;
    launch_elements(stream, "cache_heads", new_heads, call);
    launch_elements(stream, "attend_cached", call.batch * call.tokens * call.heads * device::kThreads, call);
    launch_elements(stream, "write_cache", new_heads, call);
  }

 private:
  int64_t stored_elements() const { return call_.batch * call_.tokens * 2 * call_.kv_heads * call_.width; }
  device::CachedAttentionCall call_{};
  bool packed_ = false;
};

constexpr Kernel kKernels[] = {{"cached_attention", "blocks", no_blocked_formats, prepare_cuda<CachedAttention>}};

}  // namespace

std::span<const Kernel> cuda_cached_attention() { return kKernels; }

}  // namespace galley
