#include "libcore/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector register
int64_t whole_lines(int64_t bytes) { return (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static bool is(DType d) { return d == DType::kF32; }
};
template <>
struct DTypeOf<double> {
  static bool is(DType d) { return d == DType::kF64; }
};
template <>
struct DTypeOf<int64_t> {
  static bool is(DType d) { return d == DType::kI64; }
};
template <>
struct DTypeOf<int32_t> {
  static bool is(DType d) { return d == DType::kI32; }
};
template <>
struct DTypeOf<int16_t> {
  static bool is(DType d) { return d == DType::kI16; }
};
template <>
struct DTypeOf<uint16_t> {
  static bool is(DType d) { return d == DType::kBF16 || d == DType::kF16; }
};
template <>
struct DTypeOf<int8_t> {
  static bool is(DType d) { return d == DType::kI8; }
};
template <>
struct DTypeOf<uint8_t> {
  static bool is(DType d) { return d == DType::kU8 || d == DType::kBool || d == DType::kF8E4M3; }
};

template <class T>
T read(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

template <class T>
void write(void* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

template <class T>
T saturate(double value) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(rounded);
}

/// The contribution of each index along each axis to an element's offset. In every format, including blocked ones, the offset is the sum
/// over the axes.
std::vector<std::vector<int64_t>> axis_offsets(const Shape& shape, const MemoryFormat& format) {
  std::vector<std::vector<int64_t>> offsets;
  Shape index = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) index[axis] = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    std::vector<int64_t>& along = offsets.emplace_back(static_cast<size_t>(shape[axis]));
    for (int64_t i = 0; i < shape[axis]; ++i) {
      index[axis] = i;
      along[static_cast<size_t>(i)] = format.offset(shape, index);
    }
    index[axis] = 0;
  }
  return offsets;
}

/// Calls visit(offset in elements) for every element in logical order.
template <class Visit>
void for_each_offset(const Shape& shape, const MemoryFormat& format, Visit visit) {
  const int64_t count = shape.elements();
  if (format.is_contiguous()) {
    for (int64_t i = 0; i < count; ++i) visit(i);
    return;
  }
  const std::vector<std::vector<int64_t>> offsets = axis_offsets(shape, format);
  std::vector<size_t> index(offsets.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) offset += offsets[axis][index[axis]];
    visit(offset);
    for (size_t axis = index.size(); axis-- > 0 && ++index[axis] == offsets[axis].size();) index[axis] = 0;
  }
}

/// Copies all elements from one format to another. Threads divide the first axis.
template <class Word>
void copy_formats(const Shape& shape, const MemoryFormat& from_format, const void* from, const MemoryFormat& to_format, void* to) {
  const std::vector<std::vector<int64_t>> read = axis_offsets(shape, from_format), write = axis_offsets(shape, to_format);
  const auto* source = static_cast<const Word*>(from);
  auto* target = static_cast<Word*>(to);
  const size_t last = read.size() - 1;
  const int64_t rows = shape[0] == 0 ? 0 : shape.elements() / shape[0];
  parallel_for(shape[0], std::max<int64_t>(1, 65536 / std::max<int64_t>(1, rows)), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; ++first) {
      std::vector<size_t> index(read.size(), 0);
      index[0] = static_cast<size_t>(first);
      for (int64_t done = 0; done < rows; done += last == 0 ? 1 : shape[static_cast<int>(last)]) {
        int64_t in = 0, out = 0;
        for (size_t axis = 0; axis < (last == 0 ? 1 : last); ++axis) in += read[axis][index[axis]], out += write[axis][index[axis]];
        if (last == 0) {
          target[out] = source[in];
          continue;
        }
        const int64_t *read_last = read[last].data(), *write_last = write[last].data();
        for (size_t i = 0; i < read[last].size(); ++i) target[out + write_last[i]] = source[in + read_last[i]];
        for (size_t axis = last; axis-- > 1 && ++index[axis] == read[axis].size();) index[axis] = 0;
      }
    }
  });
}

}  // namespace

std::shared_ptr<Storage> Storage::allocate(int64_t bytes, Memory& memory) {
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = static_cast<std::byte*>(memory.allocate(whole_lines(bytes), kAlignment));
  if (storage->data_ == nullptr) fail(ErrorCode::kResource, "not enough memory for an array of ", bytes, " bytes");
  storage->bytes_ = bytes;
  storage->host_access_ = memory.host_access();
  storage->memory_ = &memory;
  return storage;
}

std::shared_ptr<Storage> Storage::allocate(int64_t bytes, Device& device) {
  std::shared_ptr<Storage> storage = allocate(bytes, device.memory());
  device.stream().fill(storage->data_, 0, whole_lines(bytes));
  device.stream().synchronize();
  return storage;
}

std::shared_ptr<Storage> Storage::allocate_host(int64_t bytes, Device& device) {
  std::shared_ptr<Storage> storage = allocate(bytes, device.host_memory());
  std::memset(storage->data_, 0, static_cast<size_t>(whole_lines(bytes)));
  return storage;
}

std::shared_ptr<Storage> Storage::borrow(const void* data, int64_t bytes, std::shared_ptr<const void> owner) {
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  storage->bytes_ = bytes;
  storage->owner_ = std::move(owner);
  GALLEY_ASSERT(storage->owner_ != nullptr);
  return storage;
}

Storage::~Storage() {
  if (memory_ != nullptr) memory_->free(data_, whole_lines(bytes_), kAlignment);
}

Tensor::Tensor(DType dtype, Shape shape, MemoryFormat format, Device& device) : dtype_(dtype), shape_(shape), format_(std::move(format)) {
  storage_ = Storage::allocate(bytes(), device);
}

Tensor::Tensor(DType dtype, Shape shape, MemoryFormat format, std::shared_ptr<Storage> storage, int64_t byte_offset)
    : dtype_(dtype), shape_(shape), format_(std::move(format)), storage_(std::move(storage)), offset_(byte_offset) {
  GALLEY_ASSERT(byte_offset >= 0 && byte_offset <= storage_->bytes() && bytes() <= storage_->bytes() - byte_offset, "storage of ",
                storage_->bytes(), " bytes is too small for ", str());
}

Tensor Tensor::of(Shape shape, const std::vector<float>& values) {
  Tensor tensor(DType::kF32, shape);
  GALLEY_ASSERT(static_cast<int64_t>(values.size()) == shape.elements());
  std::copy(values.begin(), values.end(), tensor.data_as<float>());
  return tensor;
}

template <class T>
T* Tensor::data_as() {
  GALLEY_ASSERT(DTypeOf<T>::is(dtype_), "an array of ", dtype_, " was accessed as another element type");
  return reinterpret_cast<T*>(storage_->data() + offset_);
}
template float* Tensor::data_as<float>();
template double* Tensor::data_as<double>();
template int64_t* Tensor::data_as<int64_t>();
template int32_t* Tensor::data_as<int32_t>();
template int16_t* Tensor::data_as<int16_t>();
template uint16_t* Tensor::data_as<uint16_t>();
template int8_t* Tensor::data_as<int8_t>();
template uint8_t* Tensor::data_as<uint8_t>();

double load_element(DType dtype, const void* address) {
  switch (dtype) {
    case DType::kF32: return static_cast<double>(read<float>(address));
    case DType::kF64: return read<double>(address);
    case DType::kF16: return static_cast<double>(float_from_f16(read<uint16_t>(address)));
    case DType::kBF16: return static_cast<double>(float_from_bf16(read<uint16_t>(address)));
    case DType::kI64: return static_cast<double>(read<int64_t>(address));
    case DType::kI32: return read<int32_t>(address);
    case DType::kI16: return read<int16_t>(address);
    case DType::kI8: return read<int8_t>(address);
    case DType::kU8:
    case DType::kBool: return read<uint8_t>(address);
    case DType::kF8E4M3: return static_cast<double>(float_from_f8(read<uint8_t>(address)));
  }
  GALLEY_ASSERT(false);
}

void store_element(DType dtype, void* address, double value) {
  switch (dtype) {
    case DType::kF32: write(address, static_cast<float>(value)); return;
    case DType::kF64: write(address, value); return;
    case DType::kF16: write(address, f16_from_float(static_cast<float>(value))); return;
    case DType::kBF16: write(address, bf16_from_float(static_cast<float>(value))); return;
    case DType::kI64: write(address, saturate<int64_t>(value)); return;
    case DType::kI32: write(address, saturate<int32_t>(value)); return;
    case DType::kI16: write(address, saturate<int16_t>(value)); return;
    case DType::kI8: write(address, saturate<int8_t>(value)); return;
    case DType::kU8: write(address, saturate<uint8_t>(value)); return;
    case DType::kBool: write(address, static_cast<uint8_t>(value != 0)); return;
    case DType::kF8E4M3: write(address, f8_from_float(static_cast<float>(value))); return;
  }
}

double Tensor::at(const Shape& index) const {
  return load_element(dtype_, static_cast<const std::byte*>(data()) + format_.offset(shape_, index) * dtype_size(dtype_));
}

void Tensor::set(const Shape& index, double value) {
  store_element(dtype_, static_cast<std::byte*>(data()) + format_.offset(shape_, index) * dtype_size(dtype_), value);
}

std::vector<double> Tensor::to_doubles() const {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(elements()));
  const auto* bytes = static_cast<const std::byte*>(data());
  const int64_t size = dtype_size(dtype_);
  for_each_offset(shape_, format_, [&](int64_t offset) { values.push_back(load_element(dtype_, bytes + offset * size)); });
  return values;
}

void Tensor::from_doubles(const std::vector<double>& values) {
  GALLEY_ASSERT(static_cast<int64_t>(values.size()) == elements());
  auto* bytes = static_cast<std::byte*>(data());
  const int64_t size = dtype_size(dtype_);
  auto value = values.begin();
  for_each_offset(shape_, format_, [&](int64_t offset) { store_element(dtype_, bytes + offset * size, *value++); });
}

Tensor Tensor::to(MemoryFormat format) const {
  if (format == format_) return *this;
  Tensor result(dtype_, shape_, std::move(format));
  if (elements() == 0) return result;
  switch (dtype_size(dtype_)) {
    case 1: copy_formats<uint8_t>(shape_, format_, data(), result.format_, result.data()); break;
    case 2: copy_formats<uint16_t>(shape_, format_, data(), result.format_, result.data()); break;
    case 4: copy_formats<uint32_t>(shape_, format_, data(), result.format_, result.data()); break;
    case 8: copy_formats<uint64_t>(shape_, format_, data(), result.format_, result.data()); break;
    default: GALLEY_ASSERT(false, dtype_);
  }
  return result;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor result(dtype, shape_, format_);
  const auto* from = static_cast<const std::byte*>(data());
  auto* to = static_cast<std::byte*>(result.data());
  const int64_t size = dtype_size(dtype_), new_size = dtype_size(dtype);
  for_each_offset(shape_, format_, [&](int64_t offset) {
    if (dtype_ == DType::kI64 && dtype == DType::kI32) {
      const int64_t value = read<int64_t>(from + offset * size);
      GALLEY_CHECK_INPUT(value == static_cast<int32_t>(value), "the integer ", value, " does not fit in 32 bits");
    }
    store_element(dtype, to + offset * new_size, load_element(dtype_, from + offset * size));
  });
  return result;
}

Tensor Tensor::clone() const {
  Tensor result(dtype_, shape_, format_);
  std::memcpy(result.data(), data(), static_cast<size_t>(bytes()));
  return result;
}

void copy(const Tensor& from, Tensor& to, Stream& stream) {
  GALLEY_ASSERT(from.dtype() == to.dtype() && from.shape() == to.shape() && from.format() == to.format(), from.str(),
                " cannot be copied to ", to.str());
  stream.copy(to.address(), from.address(), from.bytes());
}

Tensor on_host(const Tensor& values, Stream& stream) {
  if (values.storage()->host_access()) return values;
  Tensor copied(values.dtype(), values.shape(), values.format());
  copy(values, copied, stream);
  stream.synchronize();
  return copied;
}

std::string Tensor::str() const { return cat(dtype_, " ", shape_, " ", format_); }

bool bit_equal(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  const Tensor x = a.to(MemoryFormat::contiguous()), y = b.to(MemoryFormat::contiguous());
  return std::memcmp(x.data(), y.data(), static_cast<size_t>(x.bytes())) == 0;
}

}  // namespace galley
