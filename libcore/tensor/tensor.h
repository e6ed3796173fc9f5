#pragma once
// Tensor: a concrete array. Graph values are symbolic (graph/); a Tensor holds data: a parameter that was read, a batch, a golden value.
// Arrays are in host memory unless they were allocated on another device; the host can access host memory only.

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/device/device.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley {

/// A block of memory. Tensors share it; the last one frees it.
class Storage {
 public:
  /// Zeroed memory of the device, aligned to 64 bytes. Throws Error (kResource) if its memory is exhausted.
  static std::shared_ptr<Storage> allocate(int64_t bytes, Device& device = host_device());
  /// Zeroed pinned host memory, aligned to 64 bytes: the device's streams copy to and from it directly.
  static std::shared_ptr<Storage> allocate_host(int64_t bytes, Device& device);
  /// Read-only host memory that `owner` keeps alive (a mapped file).
  static std::shared_ptr<Storage> borrow(const void* data, int64_t bytes, std::shared_ptr<const void> owner);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// Host memory only.
  std::byte* data() const {
    GALLEY_ASSERT(host_access_, "the host reads or writes memory of another device");
    return data_;
  }
  /// Of any device. For backends/ and runtime/, which pass it to kernels and copies.
  std::byte* address() const { return data_; }
  bool host_access() const { return host_access_; }
  int64_t bytes() const { return bytes_; }
  bool writable() const { return owner_ == nullptr; }

 private:
  Storage() = default;
  static std::shared_ptr<Storage> allocate(int64_t bytes, Memory& memory);
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool host_access_ = true;
  Memory* memory_ = nullptr;  // nullptr: borrowed
  std::shared_ptr<const void> owner_;
};

/// An array: dtype, shape in logical order, memory format, storage. Copies share storage.
class Tensor {
 public:
  Tensor() = default;
  /// A new array of zeros.
  Tensor(DType dtype, Shape shape, MemoryFormat format = {}, Device& device = host_device());
  /// A view of existing storage, from `byte_offset`. Throws where the storage is too small.
  Tensor(DType dtype, Shape shape, MemoryFormat format, std::shared_ptr<Storage> storage, int64_t byte_offset = 0);
  /// A contiguous array of these values (f32).
  static Tensor of(Shape shape, const std::vector<float>& values);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const MemoryFormat& format() const { return format_; }
  /// Logical elements.
  int64_t elements() const { return shape_.elements(); }
  /// Bytes in memory, padding included.
  int64_t bytes() const { return format_.padded_elements(shape_) * dtype_size(dtype_); }
  /// Host memory only.
  void* data() { return storage_->data() + offset_; }
  const void* data() const { return storage_->data() + offset_; }
  /// Of any device. For backends/ and runtime/, which pass it to kernels and copies.
  void* address() { return storage_->address() + offset_; }
  const void* address() const { return storage_->address() + offset_; }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// Typed pointer; the dtype must be T's (f32 float, f64 double, i64 int64_t, i32 int32_t, i8, u8/bool uint8_t).
  template <class T>
  T* data_as();
  template <class T>
  const T* data_as() const {
    return const_cast<Tensor*>(this)->data_as<T>();
  }

  /// Element at a logical index, as double (integers up to 2^53 are exact).
  double at(const Shape& index) const;
  void set(const Shape& index, double value);
  /// All elements in logical (row-major) order, as double.
  std::vector<double> to_doubles() const;
  /// Overwrites all elements from logical order, rounding to the dtype.
  void from_doubles(const std::vector<double>& values);

  /// The same values in another format (a copy; the same storage where nothing changes).
  Tensor to(MemoryFormat format) const;
  /// The same values in another dtype, rounded to nearest even (a copy; the same storage where nothing changes).
  Tensor to(DType dtype) const;
  /// A deep copy.
  Tensor clone() const;
  /// "f32 [8,3,32,32] channels_last"
  std::string str() const;

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  MemoryFormat format_;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;
};

/// Enqueues a copy between two arrays of one dtype, shape and format, each in host memory or on the stream's device.
void copy(const Tensor& from, Tensor& to, Stream& stream);
/// The array in host memory: itself if the host can read it, else a copy, for which it waits.
Tensor on_host(const Tensor& values, Stream& stream);

/// One element of a dtype at an address, as double, and back (rounded; integers saturate).
double load_element(DType dtype, const void* address);
void store_element(DType dtype, void* address, double value);
/// Are all elements equal bit by bit, in logical order? A NaN equals the same NaN.
bool bit_equal(const Tensor& a, const Tensor& b);

}  // namespace galley
