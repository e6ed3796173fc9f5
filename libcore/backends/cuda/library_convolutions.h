#pragma once
// Convolutions by cuDNN: the only file that knows how a convolution is described to the library.

#include <memory>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// What a convolution computes; the other two of x, weight and y (or their gradients) are given.
enum class ConvolutionResult : uint8_t { kX, kWeight, kY };

/// A convolution of x [N,C,H,W] with a weight [O,C/groups,kh,kw] to y [N,O,h,w], in any strides; forward, a residual
/// and a bias may be added to y, and then relu, before it is rounded.
struct ConvolutionForm {
  ConvolutionResult result = ConvolutionResult::kY;
  DType dtype = DType::kF32;  ///< Of all operands: f32, bf16 or f16, with sums in f32.
  int64_t x_size[4] = {}, weight_size[4] = {}, y_size[4] = {};
  int64_t x_steps[4] = {}, weight_steps[4] = {}, y_steps[4] = {};
  bool tf32 = false;          ///< Operands in f32 may be rounded to TF32.
  bool deterministic = true;  ///< Equal operands give equal bits in each run.
  int64_t stride[2] = {1, 1}, padding[2] = {}, dilation[2] = {1, 1};
  bool bias = false;      ///< Of O numbers, in the dtype of the operands.
  bool residual = false;  ///< As y.
  bool relu = false;
  bool statistics = false;  ///< Also the sums of y and of its squares for each of O channels, in f32. Of y without additions.

  /// "forward bf16 [256,64,56,56] [64,64,3,3] ...", equal for equal forms.
  std::string text() const;
};

struct ConvolutionOperands {
  void *x = nullptr, *weight = nullptr, *y = nullptr;
  const void *bias = nullptr, *residual = nullptr;
  float *sum = nullptr, *squares = nullptr;
};

/// A plan of the library for one form. Immutable.
class LibraryConvolution {
 public:
  virtual ~LibraryConvolution() = default;
  virtual int64_t workspace_bytes() const = 0;
  /// Enqueues it. Throws Error (kResource).
  virtual void run(Stream& stream, const ConvolutionOperands& operands, void* workspace) const = 0;
};

/// The plan that the library's heuristics put first for a GPU, of those that the form allows and that need at most
/// 1 GiB; null with the reason. Plans are built once.
std::shared_ptr<const LibraryConvolution> library_convolution(const CudaDevice& device, const ConvolutionForm& form, std::string& reason);

/// What the library would do on a GPU that this machine does not have.
struct ConvolutionSupport {
  int listed = 0, usable = 0;  ///< Engine configurations of the heuristics, and those that Galley may use and that have plans.
  int64_t workspace = -1;      ///< Bytes of the first usable one.
};
/// `card`: its properties as cuDNN's JSON. Throws Error (kResource) without cuDNN.
ConvolutionSupport convolution_support(const ConvolutionForm& form, const std::string& card);

}  // namespace galley
