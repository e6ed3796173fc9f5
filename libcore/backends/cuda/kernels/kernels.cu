// All kernels, for nvcc. A kernel with C linkage keeps its name, whatever its namespace.
#include "libcore/backends/cuda/kernels/all.h"
#include "libcore/backends/cuda/kernels/list.h"

#define GALLEY_IS_DEFINED(name) static_assert(sizeof(&galley::device::name) > 0);
GALLEY_CUDA_KERNELS(GALLEY_IS_DEFINED)
