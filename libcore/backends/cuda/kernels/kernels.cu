// All kernels, for nvcc. A kernel with C linkage keeps its name, whatever its namespace.
#include "libcore/backends/cuda/kernels/list.h"
#include "libcore/backends/cuda/kernels/portable.h"
