#include "libcore/data/image.h"

#include <algorithm>
#include <cmath>

namespace galley {

Image::Image(DType dtype, int64_t height, int64_t width, int64_t channels)
    : dtype_(dtype), height_(height), width_(width), channels_(channels) {
  GALLEY_ASSERT((dtype == DType::kU8 || dtype == DType::kF32) && height > 0 && width > 0 && channels > 0, str());
  data_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes()));
}

Image::Image(const Image& other) : dtype_(other.dtype_), height_(other.height_), width_(other.width_), channels_(other.channels_) {
  if (other.data_ == nullptr) return;
  data_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes()));
  std::memcpy(data_.get(), other.data_.get(), static_cast<size_t>(bytes()));
}

Image Image::from_tensor(const Tensor& tensor) {
  GALLEY_ASSERT(tensor.shape().rank() == 3 && tensor.format().is_contiguous(), tensor.str());
  Image image(tensor.dtype(), tensor.shape()[1], tensor.shape()[2], tensor.shape()[0]);
  with_pixel_type(image, [&]<class T>(T) {
    const T* from = tensor.data_as<T>();
    T* to = image.as<T>();
    for (int64_t c = 0; c < image.channels(); ++c)
      for (int64_t i = 0; i < image.area(); ++i) to[i * image.channels() + c] = *from++;
  });
  return image;
}

Image Image::to(DType dtype, bool scale) const {
  if (dtype == dtype_) return *this;
  Image result(dtype, height_, width_, channels_);
  const int64_t count = values();
  if (dtype == DType::kF32) {
    const uint8_t* from = as<uint8_t>();
    float* to = result.as<float>();
    for (int64_t i = 0; i < count; ++i) to[i] = scale ? static_cast<float>(from[i]) / 255.0f : static_cast<float>(from[i]);
  } else {
    const float* from = as<float>();
    uint8_t* to = result.as<uint8_t>();
    const float factor = scale ? 255.999f : 1.0f;
    // The order of the comparisons maps NaN to 0.
    for (int64_t i = 0; i < count; ++i) {
      const float value = from[i] * factor;
      to[i] = value >= 255.0f ? uint8_t{255} : value > 0.0f ? static_cast<uint8_t>(value) : uint8_t{0};
    }
  }
  return result;
}

Image Image::with_channels(int64_t channels) const {
  if (channels == channels_) return *this;
  GALLEY_ASSERT(dtype_ == DType::kU8 && channels + channels_ == 4, str());
  Image result(DType::kU8, height_, width_, channels);
  const uint8_t* from = as<uint8_t>();
  uint8_t* to = result.as<uint8_t>();
  const int64_t count = area();
  if (channels == 3) {
    for (int64_t i = 0; i < count; ++i) to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = from[i];
  } else {
    // The weights 0.299, 0.587 and 0.114 in 16-bit fixed point, rounded.
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<uint8_t>((from[3 * i] * 19595u + from[3 * i + 1] * 38470u + from[3 * i + 2] * 7471u + 0x8000u) >> 16);
    }
  }
  return result;
}

Tensor Image::to_tensor() const {
  Tensor tensor(dtype_, {channels_, height_, width_});
  with_pixel_type(*this, [&]<class T>(T) {
    const T* from = as<T>();
    T* to = tensor.data_as<T>();
    for (int64_t c = 0; c < channels_; ++c)
      for (int64_t i = 0; i < area(); ++i) *to++ = from[i * channels_ + c];
  });
  return tensor;
}

std::string Image::str() const { return cat(dtype_, " [", channels_, ",", height_, ",", width_, "]"); }

}  // namespace galley
