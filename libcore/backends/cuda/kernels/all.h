#pragma once
// The definitions of all kernels in list.h.

#include "libcore/backends/cuda/kernels/attention.h"
#include "libcore/backends/cuda/kernels/boxes.h"
#include "libcore/backends/cuda/kernels/copy.h"
#include "libcore/backends/cuda/kernels/elementwise.h"
#include "libcore/backends/cuda/kernels/embedding.h"
#include "libcore/backends/cuda/kernels/instances.h"
#include "libcore/backends/cuda/kernels/loss.h"
#include "libcore/backends/cuda/kernels/pool.h"
#include "libcore/backends/cuda/kernels/products.h"
#include "libcore/backends/cuda/kernels/quantized.h"
#include "libcore/backends/cuda/kernels/random.h"
#include "libcore/backends/cuda/kernels/reduce.h"
#include "libcore/backends/cuda/kernels/rows.h"
#include "libcore/backends/cuda/kernels/sampling.h"
#include "libcore/backends/cuda/kernels/select.h"
#include "libcore/backends/cuda/kernels/update.h"
