#pragma once
// Python's pickle format, read as data. The interpreter supports the opcodes that PyTorch's files use and a short list of globals (tensors,
// storages, dictionaries). It builds values and executes nothing; a file with anything else is rejected. Every size is checked against the
// file before memory is allocated, and memory is bounded by a multiple of the pickle's size. Format:
// https://github.com/python/cpython/blob/main/Lib/pickletools.py; PyTorch's usage: torch/serialization.py.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// An element type of PyTorch.
struct TorchType {
  std::string_view storage;    ///< "FloatStorage"; "" if tensors of the type use an UntypedStorage.
  std::string_view name;       ///< "float32"
  std::string_view text;       ///< Name in safetensors files: "F32".
  int64_t bytes;               ///< Bytes per element.
  std::optional<DType> dtype;  ///< nullopt if Galley does not support it.
};

/// A value of a pickle. `number` is the value of a kInt or kBool, the bits of a kFloat, the offset in the file of a kText, kBytes or kLong
/// (`length` bytes), and for other kinds an index into a list of Pickle.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,
    kLong,
    kList,
    kTuple,
    kSet,
    kDict,
    kGlobal,
    kType,
    kStorage,
    kTensor
  };
  Kind kind = Kind::kNone;
  uint8_t tag = 0;  ///< kGlobal: a PickleGlobal; kDict: whether it is an object with attributes.
  uint32_t length = 0;
  int64_t number = 0;
};

/// A storage that tensors of the pickle refer to.
struct PickleStorage {
  std::string key;  ///< Name of the storage in the file.
  int64_t bytes = 0;
  int64_t element_bytes = 1;
};

/// A tensor: a strided view of a storage.
struct PickleTensor {
  const TorchType* type = nullptr;
  size_t storage = 0;  ///< Index into Pickle::storages.
  int64_t offset = 0;  ///< Offset in elements from the start of the storage.
  Shape shape;
  Shape strides;  ///< In elements, not negative. The tensor lies within its storage and has no more elements than the storage.
};

/// The contents of a pickle.
struct Pickle {
  PickleValue root;
  std::vector<std::vector<PickleValue>> containers;  ///< Lists, tuples, sets; dictionaries as key, value, key, value...
  std::vector<PickleStorage> storages;
  std::vector<PickleTensor> tensors;
  std::span<const std::byte> file;
  int64_t end = 0;  ///< Offset after the STOP opcode.

  const std::vector<PickleValue>& items(const PickleValue& container) const { return containers[static_cast<size_t>(container.number)]; }
  /// The text of a kText, kBytes or kLong.
  std::string_view text(const PickleValue& value) const {
    return {reinterpret_cast<const char*>(file.data()) + value.number, value.length};
  }
};

/// Limits of a pickle, far above those of any real file.
struct PickleLimits {
  int64_t opcodes = 3'000'000;
  int64_t memo = 600'000;
  int64_t stack = 600'000;
  int64_t containers = 600'000;
  int64_t marks = 100;
  int64_t text = 16'000'000;  ///< Bytes of one string.
  int64_t tensors = 100'000;
};

/// Parses the pickle that begins at `begin` of `file`. A pure function; throws Error (exit code 4) with the byte offset in `file` and the
/// rejected name or opcode.
Pickle parse_pickle(std::span<const std::byte> file, int64_t begin = 0, const PickleLimits& limits = {});

}  // namespace galley
