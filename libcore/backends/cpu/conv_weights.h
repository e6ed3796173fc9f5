#pragma once
// What the weight gradients of dense convolutions share.

#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// Is it a weight gradient of one group, of that type and channels_last, of arrays that are not empty?
Support is_dense_weight_gradient(const KernelQuery& query, DType dtype = DType::kF32);

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
