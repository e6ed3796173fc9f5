#pragma once
// The loops of batch norm over rows of channels (norm.cpp). batchnorm::loops<T>() gives those of the widest instruction set.

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/ops/norm.h"

namespace galley::batchnorm {

/// The coefficients of each channel for the backward loops; the activation's argument is x scale + shift.
struct Coefficients {
  const float *mean, *scale, *shift, *a, *b, *offset;
  const float* gates;  // with a gate, for each image: factors, then addends
};

/// The gradient of each channel of an image is multiplied by `factor`, then `spread` is added.
struct Gate {
  const float *factor = nullptr, *spread = nullptr;
};

/// How the gradient of the activation's argument (pre_grad) is computed: from x, or from the output y of the forward pass.
template <class T>
struct Mask {
  Activation activation = Activation::kNone;
  const T* y = nullptr;
  T* pre_grad = nullptr;  // where it is written, if it is masked by y and used elsewhere
  Gate gate;              // applied to the gradient first

  /// The mask from `count` values further on.
  Mask from(int64_t count) const {
    return {activation, y != nullptr ? y + count : nullptr, pre_grad != nullptr ? pre_grad + count : nullptr, gate};
  }
};

/// The loops over `rows` rows of `channels`, of one instruction set.
template <class T>
struct Loops {
  void (*apply)(const T* x, const T* residual, T* y, int64_t rows, int64_t channels, const float* scale, const float* shift,
                Activation activation);
  void (*gradient_sums)(const T* grad, const T* x, const Mask<T>& mask, int64_t rows, int64_t channels, const Coefficients& k, float* sum,
                        float* dot);
  void (*apply_gradient)(const T* grad, const T* x, const Mask<T>& mask, T* dx, T* dresidual, int64_t rows, int64_t channels,
                         const Coefficients& k);
};

/// T: float or BFloat16.
template <class T>
Loops<T> loops();

}  // namespace galley::batchnorm
