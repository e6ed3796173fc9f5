#pragma once
// Tensor: a concrete array in host memory. Graph values are symbolic (graph/); a Tensor holds data: a parameter that was
// read, a batch, a golden value.

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley {

/// Bytes with an owner. Shared by Tensors; freed with the last.
class Storage {
 public:
  /// Zeroed, 64-byte aligned memory.
  static std::shared_ptr<Storage> allocate(int64_t bytes);
  /// Memory of somebody else (a mapped file), kept alive by `owner`; not to be written.
  static std::shared_ptr<Storage> borrow(const void* data, int64_t bytes, std::shared_ptr<const void> owner);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool writable() const { return owner_ == nullptr; }

 private:
  Storage() = default;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<const void> owner_;
};

/// An array: dtype, shape in logical order, memory format, storage. Copies share storage.
class Tensor {
 public:
  Tensor() = default;
  /// A new array of zeros.
  Tensor(DType dtype, Shape shape, MemoryFormat format = {});
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
  void* data() { return storage_->data() + offset_; }
  const void* data() const { return storage_->data() + offset_; }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// Typed pointer; the dtype must be T's (f32 float, f64 double, i64 int64_t, i32 int32_t, i8, u8/bool uint8_t).
  template <class T> T* data_as();
  template <class T> const T* data_as() const { return const_cast<Tensor*>(this)->data_as<T>(); }

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

/// One element of a dtype at an address, as double, and back (rounded; integers saturate).
double load_element(DType dtype, const void* address);
void store_element(DType dtype, void* address, double value);
/// Bits of both equal, element by element in logical order (NaN equals the same NaN).
bool bit_equal(const Tensor& a, const Tensor& b);

}  // namespace galley
