// The CPU kernels, family by family.

#include "libcore/backends/cpu/table.h"

#include "libcore/backends/cpu/collective.h"
#include "libcore/backends/cpu/conv_rows.h"
#include "libcore/backends/cpu/extents.h"
#include "libcore/backends/cpu/instances.h"
#include "libcore/backends/cpu/linear_rows.h"
#include "libcore/backends/cpu/orthonormal.h"
#include "libcore/backends/cpu/pixels.h"

namespace galley {

std::span<const Kernel> cpu_kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
    for (const auto& family : {cpu_attention(),
                               cpu_boxes(),
                               cpu_cache(),
                               cpu_cast(),
                               cpu_collective(),
                               cpu_conv(),
                               cpu_conv_rows(),
                               cpu_detection(),
                               cpu_elementwise(),
                               cpu_elementwise_chain(),
                               cpu_embedding(),
                               cpu_extents(),
                               cpu_extremum(),
                               cpu_fake_quantize(),
                               cpu_fill(),
                               cpu_group_norm(),
                               cpu_index(),
                               cpu_instances(),
                               cpu_layer_norm(),
                               cpu_linear_rows(),
                               cpu_loss(),
                               cpu_matmul(),
                               cpu_norm(),
                               cpu_orthonormal(),
                               cpu_pixels(),
                               cpu_pool(),
                               cpu_quantized_conv(),
                               cpu_quantized_elementwise(),
                               cpu_random(),
                               cpu_recurrent(),
                               cpu_quantized_recurrent(),
                               cpu_reduce(),
                               cpu_resize(),
                               cpu_rms_norm(),
                               cpu_rotary(),
                               cpu_sampling(),
                               cpu_flow(),
                               cpu_select(),
                               cpu_shape(),
                               cpu_shuffle(),
                               cpu_softmax(),
                               cpu_update()})
      list.insert(list.end(), family.begin(), family.end());
    return list;
  }();
  return all;
}

}  // namespace galley
