#pragma once
// Gradients of convolutions that are listed with the depthwise weight gradient.

#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

const Kernel& conv_weights_implicit_gemm_kernel();  // the weight gradient of dense ones: conv_weights_implicit_gemm.cpp
const Kernel& conv_weights_direct_kernel();         // that of few input channels: conv_weights_direct.cpp
const Kernel& conv_weights_1x1_kernel();            // that of 1x1 ones of few channels: conv_weights_1x1.cpp
const Kernel& depthwise_data_kernel();              // the input gradient of strided depthwise ones: depthwise_data.cpp

/// Is it a weight gradient of one group, of that type and channels_last, of arrays that are not empty?
Support is_dense_weight_gradient(const KernelQuery& query, DType dtype = DType::kF32);
/// Bytes of sums that threads keep for themselves, at most.
constexpr int64_t kMostPartials = 32 << 20;

/// Offsets of a weight's elements are sums of one term for each index, whatever the format.
struct WeightTerms {
  explicit WeightTerms(const TensorType& w) {
    for (int64_t o = 0; o < w.shape[0]; ++o) out.push_back(w.format.offset(w.shape, {o, 0, 0, 0}));
    for (int64_t i = 0; i < w.shape[1]; ++i) in.push_back(w.format.offset(w.shape, {0, i, 0, 0}));
    for (int64_t h = 0; h < w.shape[2]; ++h) {
      for (int64_t k = 0; k < w.shape[3]; ++k) tap.push_back(w.format.offset(w.shape, {0, 0, h, k}));
    }
  }
  std::vector<int64_t> out, in, tap;
};

}  // namespace galley
