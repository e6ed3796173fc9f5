#pragma once
// Attention by cuDNN's fused engines: the only file that knows how attention is described to the library.

#include <memory>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// Attention, or its gradients, of q [batch,heads,queries,width], k [batch,kv_heads,keys,width] and v [batch,kv_heads,keys,value_width] in
/// any strides to o, which is contiguous as [batch,queries,heads,value_width].
struct AttentionForm {
  bool backward = false;
  DType dtype = DType::kBF16;  ///< Of all operands but the statistics, which are f32: bf16 or f16.
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0, value_width = 0;
  int64_t q_steps[3] = {}, k_steps[3] = {}, v_steps[3] = {};  ///< Between samples, heads and rows; those of gradients too.
  bool causal = false;                                        ///< Query i reads keys up to i.
  bool deterministic = true;                                  ///< Equal operands give equal bits in each run.

  /// Equal for equal forms.
  std::string text() const;
};

struct AttentionOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *grad = nullptr;
  void *o = nullptr, *lse = nullptr;  ///< Results forward, inputs backward. lse: f32 [batch,heads,queries].
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float scale = 1;
};

/// A plan of the library for one form. Immutable.
class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  virtual int64_t scratch_bytes() const = 0;
  /// Enqueues it. Throws Error (kResource).
  virtual void run(Stream& stream, const AttentionOperands& operands, void* scratch) const = 0;
};

/// The plan that the library's heuristics put first for a GPU, of those that keep the form's limits and need at most
/// 1 GiB; null with the reason. Plans are built once.
std::shared_ptr<const LibraryAttention> library_attention(const CudaDevice& device, const AttentionForm& form, std::string& reason);

/// What the library would do on a GPU that this machine does not have.
struct AttentionSupport {
  int listed = 0, allowed = 0;  ///< Engine configurations of the heuristics, and those that keep Galley's limits.
  bool compiled = false;        ///< Has the first of them a plan?
  int64_t workspace = -1;       ///< Its bytes.
};
/// `card`: its properties as cuDNN's JSON. Throws Error (kResource) without cuDNN.
AttentionSupport attention_support(const AttentionForm& form, const std::string& card);

}  // namespace galley
