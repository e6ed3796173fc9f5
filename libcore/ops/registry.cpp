#include "libcore/ops/registry.h"

#include "libcore/graph/op_def.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/orthonormal.h"
#include "libcore/ops/pixels.h"

namespace galley {

void ensure_ops_registered() {
  static const bool installed = [] {
    OpTable table;
    for (OpTable (*family)() : {conv_ops,          matmul_ops,
                                attention_ops,     rotary_ops,
                                cache_ops,         rms_norm_ops,
                                norm_ops,          pool_ops,
                                softmax_ops,       loss_ops,
                                random_ops,        embedding_ops,
                                recurrent_ops,     quantized_recurrent_ops,
                                elementwise_ops,   elementwise_chain_ops,
                                broadcast_ops,     reduce_ops,
                                shape_ops,         shuffle_ops,
                                index_ops,         update_ops,
                                nms_ops,           roi_align_ops,
                                roi_pool_ops,      deform_conv_ops,
                                grid_sample_ops,   flow_ops,
                                quantize_ops,      quantized_ops,
                                fake_quantize_ops, collective_ops,
                                orthonormal_ops,   extents_ops,
                                pixel_ops,         f8_ops}) {
      for (const OpDef* op : family()) table.push_back(op);
    }
    register_ops(table);
    return true;
  }();
  (void)installed;
}

}  // namespace galley
