// Batch norm: the algorithms of each operator, in the order in which they are tried.

#include "libcore/backends/cpu/algorithms.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"batch_norm", "rows", algorithm::kBatchNormRows, "f32 or bf16 in channels_last or of rank 2, with relu, relu6 or hardswish",
     "channels fill the vectors, all sums of a block are in the first-level cache"},
    {"batch_norm", "planes", algorithm::kBatchNormPlanes, "contiguous f32 of rank 3 to 5", "each plane has one mean and one scale"},
    {"batch_norm_backward", "rows", algorithm::kBatchNormRowsBackward, "as batch_norm", "as batch_norm"},
    {"batch_norm_backward", "planes", algorithm::kBatchNormPlanesBackward, "as batch_norm", "as batch_norm"},
    {"batch_norm_inference", "rows", algorithm::kBatchNormRowsInference, "as batch_norm", "as batch_norm"},
    {"batch_norm_inference", "planes", algorithm::kBatchNormPlanesInference, "as batch_norm", "as batch_norm"},

    // fuse_gates and fuse_pointwise make these operators wherever these algorithms support the result.
    {"gated_batch_norm_backward", "rows", algorithm::kGatedBatchNormBackward, "as batch_norm in channels_last",
     "the product with the gate is not a pass of its own"},
    {"pointwise_batch_norm_backward", "rows", algorithm::kPointwiseBatchNormBackward, "f32 in channels_last, 1x1 kernels of few channels",
     "the gradient between norm and convolution is never written to memory"},
};

}  // namespace

std::span<const AlgorithmRow> norm_algorithms() { return kRows; }

std::span<const Kernel> cpu_norm() {
  static const std::vector<Kernel> kernels = kernels_of(norm_algorithms());
  return kernels;
}

}  // namespace galley
