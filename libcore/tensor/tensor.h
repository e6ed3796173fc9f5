#pragma once
// Tensor: an array with data, e.g. a parameter that was read, a batch, or a golden value. (Values of a graph are symbolic; see graph/.)
// Arrays are in host memory unless they are allocated on another device. The host can access only host memory.

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/device/device.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley {

/// A block of memory that tensors share. It is freed with the last of them.
class Storage {
 public:
  /// Allocates zeroed device memory, aligned to 64 bytes. Throws Error (kResource) if the device's memory is exhausted.
  static std::shared_ptr<Storage> allocate(int64_t bytes, Device& device = host_device());
  /// Allocates zeroed pinned host memory, aligned to 64 bytes, which the device's streams access directly.
  static std::shared_ptr<Storage> allocate_host(int64_t bytes, Device& device);
  /// Wraps read-only host memory that `owner` keeps alive (a mapped file).
  static std::shared_ptr<Storage> borrow(const void* data, int64_t bytes, std::shared_ptr<const void> owner);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// Address of host memory.
  std::byte* data() const {
    GALLEY_ASSERT(host_access_, "the host reads or writes memory of another device");
    return data_;
  }
  /// Address in the memory of any device. For backends/ and runtime/, which pass it to kernels and copies.
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
  /// Allocates an array of zeros.
  Tensor(DType dtype, Shape shape, MemoryFormat format = {}, Device& device = host_device());
  /// A view of existing storage, starting at `byte_offset`. Throws InternalError if the storage is too small.
  Tensor(DType dtype, Shape shape, MemoryFormat format, std::shared_ptr<Storage> storage, int64_t byte_offset = 0);
  /// A contiguous f32 array with these values.
  static Tensor of(Shape shape, const std::vector<float>& values);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const MemoryFormat& format() const { return format_; }
  /// Number of logical elements.
  int64_t elements() const { return shape_.elements(); }
  /// Size in memory in bytes, including padding.
  int64_t bytes() const { return format_.padded_elements(shape_) * dtype_size(dtype_); }
  /// Address of the first element, in host memory only.
  void* data() { return storage_->data() + offset_; }
  const void* data() const { return storage_->data() + offset_; }
  /// Address in the memory of any device. For backends/ and runtime/, which pass it to kernels and copies.
  void* address() { return storage_->address() + offset_; }
  const void* address() const { return storage_->address() + offset_; }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// Typed pointer. T must match the dtype (f32 float, f64 double, i64 int64_t, i32 int32_t, i8 int8_t, u8 and bool uint8_t).
  template <class T>
  T* data_as();
  template <class T>
  const T* data_as() const {
    return const_cast<Tensor*>(this)->data_as<T>();
  }

  /// Element at a logical index as double (integers up to 2^53 are exact).
  double at(const Shape& index) const;
  void set(const Shape& index, double value);
  /// All elements in logical (row-major) order, as double.
  std::vector<double> to_doubles() const;
  /// Overwrites all elements, given in logical order; rounds to the dtype.
  void from_doubles(const std::vector<double>& values);

  /// The same values in another format. A copy, or the same storage if the format does not change.
  Tensor to(MemoryFormat format) const;
  /// The same values in another dtype, rounded to nearest even. A copy, or the same storage if the dtype does not change.
  Tensor to(DType dtype) const;
  /// A deep copy.
  Tensor clone() const;
  /// Text for messages: "f32 [8,3,32,32] channels_last".
  std::string str() const;

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  MemoryFormat format_;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;
};

/// Enqueues a copy between two arrays of equal dtype, shape and format, each in host memory or on the stream's device.
void copy(const Tensor& from, Tensor& to, Stream& stream);
/// The array in host memory: the array itself if the host can read it, else a copy. Waits for the copy.
Tensor on_host(const Tensor& values, Stream& stream);

/// Loads an element as double, or stores a double as an element (rounded; integers saturate).
double load_element(DType dtype, const void* address);
void store_element(DType dtype, void* address, double value);
/// Whether all elements are equal bit by bit, in logical order. NaNs are equal if their bits are.
bool bit_equal(const Tensor& a, const Tensor& b);

}  // namespace galley
