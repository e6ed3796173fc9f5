#pragma once
// implicit_gemm and packed_gemm of integers: a quantized convolution or matrix product as a plan of bands of output pixels times ranges of
// outputs. The inputs of a band are copied once into a thread's scratch memory (widened or as bytes, with padding around them), so that a
// row of the window is one run of consecutive memory for every pixel. No image is unrolled (Chetlur et al., "cuDNN: Efficient Primitives
// for Deep Learning", 2014). 2 pixels taps channels outputs operations; bound by the products of bytes, in 1x1 layers of few channels by
// memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "libcore/backends/cpu/quantized_gemm.h"

namespace galley::quantized {

/// Sizes of a convolution on channels_last images; a matrix product is a 1x1 window on [1, rows] pixels.
struct ConvSizes {
  int64_t images = 1, channels = 1, height = 1, width = 1;
  int64_t outputs = 1, out_height = 1, out_width = 1;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
  int64_t out_bytes = 1;  // of one result
};

class ImplicitGemm {
 public:
  ImplicitGemm(const ConvSizes& sizes, Path path, int threads);

  int64_t scratch_bytes() const { return threads_ * workspace_bytes_; }
  /// x: bytes of the images, their zero point as of u8 and `flip` 0x80 where they are i8; weight: packed; `epilogue` for output 0 of
  /// pixel 0; scratch 64-byte aligned.
  void run(const uint8_t* x, uint8_t flip, int32_t zero_point, const int8_t* weight, const Epilogue& epilogue, std::byte* scratch) const;

 private:
  struct Task {
    int64_t image = 0, begin = 0, end = 0;  // output rows of an image; of 1x1 windows: pixels
    int64_t first_output = 0, last_output = 0;
  };
  void run_task(const Task& task, const uint8_t* x, uint8_t flip, int32_t zero_point, const int8_t* weight, const Epilogue& epilogue,
                std::byte* workspace) const;
  void lay_out(const Task& task, int64_t group, const uint8_t* x, uint8_t flip, int32_t zero_point, std::byte* band) const;
  void place(const uint8_t* x, int64_t pixels, uint8_t flip, int32_t zero_point, std::byte* to) const;
  void place_padding(int64_t pixels, int32_t zero_point, std::byte* to) const;

  ConvSizes sizes_;
  Path path_;
  int64_t threads_ = 1;
  bool pointwise_ = false;  // 1x1 windows without padding: a band is a range of pixels
  int64_t group_inputs_ = 1, group_outputs_ = 1;
  int64_t quads_ = 1;        // of a pixel of a group
  int64_t value_bytes_ = 1;  // of a copied value
  int64_t columns_ = 1;      // of a copied row
  std::vector<Task> tasks_;
  std::vector<int32_t> pixel_at_, run_at_;
  int64_t runs_ = 1, run_quads_ = 1;
  bool resident_ = false, few_ = false;
  int64_t wide_at_ = 0, starts_at_ = 0, tiles_at_ = 0, workspace_bytes_ = 0;
};

}  // namespace galley::quantized
