#pragma once
// The table of all operators. Registration is explicit: self-registering objects of a static library are dropped by the linker.

#include <vector>

namespace galley {

struct OpDef;
using OpTable = std::vector<const OpDef*>;

/// Registers all operators once. Call it before capturing or loading a graph. Thread-safe, cheap.
void ensure_ops_registered();

// The tables of the families, each in its file.
OpTable conv_ops();
OpTable matmul_ops();
OpTable attention_ops();
OpTable rotary_ops();
OpTable cache_ops();
OpTable rms_norm_ops();
OpTable norm_ops();
OpTable pool_ops();
OpTable softmax_ops();
OpTable loss_ops();
OpTable random_ops();
OpTable embedding_ops();
OpTable recurrent_ops();
OpTable quantized_recurrent_ops();
OpTable elementwise_ops();
OpTable elementwise_chain_ops();
OpTable broadcast_ops();
OpTable reduce_ops();
OpTable shape_ops();
OpTable shuffle_ops();
OpTable index_ops();
OpTable nms_ops();
OpTable roi_align_ops();
OpTable roi_pool_ops();
OpTable deform_conv_ops();
OpTable grid_sample_ops();
OpTable flow_ops();
OpTable update_ops();
OpTable quantize_ops();
OpTable quantized_ops();
OpTable f8_ops();
OpTable fake_quantize_ops();

}  // namespace galley
