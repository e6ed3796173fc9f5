#pragma once
// Image: the pixels of one sample between the codec and the batch. u8 or f32, logical shape [C,H,W], stored as [H,W,C], so that a
// channels_last batch is a plain copy.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "libcore/base/error.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The dtype of pixels of type T: uint8_t or float.
template <class T>
constexpr DType kPixelType = DType::kF32;
template <>
inline constexpr DType kPixelType<uint8_t> = DType::kU8;

/// A value type: copying copies the pixels. The pixels of a new image are not initialized.
class Image {
 public:
  Image() = default;
  /// `dtype` is u8 or f32; sizes are at least 1.
  Image(DType dtype, int64_t height, int64_t width, int64_t channels);
  Image(const Image& other);
  Image(Image&&) = default;
  Image& operator=(const Image& other) { return *this = Image(other); }
  Image& operator=(Image&&) = default;
  /// Copies a contiguous tensor [C,H,W] of u8 or f32.
  static Image from_tensor(const Tensor& tensor);

  DType dtype() const { return dtype_; }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t channels() const { return channels_; }
  /// Number of pixels (area), and of values (pixels times channels).
  int64_t area() const { return height_ * width_; }
  int64_t values() const { return area() * channels_; }
  int64_t bytes() const { return values() * dtype_size(dtype_); }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }

  /// All values in memory order. T is the pixel type.
  template <class T>
  T* as() {
    GALLEY_ASSERT(kPixelType<T> == dtype_);
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const {
    return const_cast<Image*>(this)->as<T>();
  }
  /// The values of row y.
  template <class T>
  T* row(int64_t y) {
    return as<T>() + y * width_ * channels_;
  }
  template <class T>
  const T* row(int64_t y) const {
    return as<T>() + y * width_ * channels_;
  }

  /// Converts the pixels. u8 to f32: v / 255 if `scale`, else v. f32 to u8: floor(v * 255.999) if `scale` (as torchvision), else
  /// truncation; values out of range saturate.
  Image to(DType dtype, bool scale) const;
  /// Converts a u8 image of 1 or 3 channels to 1 or 3 channels; 3 to 1 by the luma of ITU-R 601-2, as Pillow's convert("L").
  Image with_channels(int64_t channels) const;
  /// A contiguous copy [C,H,W] of the same dtype.
  Tensor to_tensor() const;
  /// Dtype and shape for messages: "u8 [3,32,32]".
  std::string str() const;

 private:
  DType dtype_ = DType::kU8;
  int64_t height_ = 0, width_ = 0, channels_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

/// Calls work(T{}) with the image's pixel type.
template <class Work>
void with_pixel_type(const Image& image, Work work) {
  if (image.dtype() == DType::kU8) {
    work(uint8_t{});
  } else {
    work(float{});
  }
}

}  // namespace galley
