#pragma once
// narrow_buffers: holds the running statistics of batch norms in low precision (precision.buffers; FSDP: MixedPrecision.buffer_dtype).

#include "libcore/graph/graph.h"

namespace galley {

/// On a captured graph, before other passes: the buffers that batch norms read or update as mean and variance get the dtype, bf16 or f16.
/// Updates are computed as before and rounded when they are stored; all other nodes read the values converted to f32.
void narrow_buffers(Graph& graph, DType dtype);

}  // namespace galley
