#pragma once
// Python's pickle format, read as data. The interpreter knows the opcodes that PyTorch's files use and a short list of names
// (tensors, storages, dictionaries); it builds values and calls nothing, so a file can do nothing but be refused. Every size is
// checked against the file before anything is allocated, and memory is bounded by a multiple of the pickle's own bytes.
// Format: https://github.com/python/cpython/blob/main/Lib/pickletools.py; what PyTorch writes: torch/serialization.py.

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
  std::string_view storage;    ///< "FloatStorage"; "" where tensors of that type lie in an UntypedStorage.
  std::string_view name;       ///< "float32"
  std::string_view text;       ///< As safetensors writes it: "F32".
  int64_t bytes;               ///< Of one element.
  std::optional<DType> dtype;  ///< None: Galley does not compute with it.
};

/// A value of a pickle. `number` is the value of a kInt or kBool, the bits of a kFloat, the place in the file of a kText, kBytes or
/// kLong (`length` bytes), and for all others an index into a list of Pickle.
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
  uint8_t tag = 0;  ///< kGlobal: which; kDict: whether it is an object with attributes.
  uint32_t length = 0;
  int64_t number = 0;
};

struct PickleStorage {
  std::string key;  ///< Under which the values lie.
  int64_t bytes = 0;
  int64_t element_bytes = 1;
};

struct PickleTensor {
  const TorchType* type = nullptr;
  size_t storage = 0;  ///< Index into Pickle::storages.
  int64_t offset = 0;  ///< Elements from the storage's start.
  Shape shape;
  Shape strides;  ///< In elements; not negative. The whole tensor lies in its storage and has no more elements than it.
};

/// What one pickle holds.
struct Pickle {
  PickleValue root;
  std::vector<std::vector<PickleValue>> containers;  ///< Lists, tuples, sets; dictionaries as key, value, key, value...
  std::vector<PickleStorage> storages;
  std::vector<PickleTensor> tensors;
  std::span<const std::byte> file;
  int64_t end = 0;  ///< Behind the STOP opcode.

  const std::vector<PickleValue>& items(const PickleValue& container) const { return containers[static_cast<size_t>(container.number)]; }
  /// Text of a kText, kBytes or kLong.
  std::string_view text(const PickleValue& value) const {
    return {reinterpret_cast<const char*>(file.data()) + value.number, value.length};
  }
};

/// Limits of one pickle; far above those of any real file.
struct PickleLimits {
  int64_t opcodes = 3'000'000;
  int64_t memo = 600'000;
  int64_t stack = 600'000;
  int64_t containers = 600'000;
  int64_t marks = 100;
  int64_t text = 16'000'000;  ///< Bytes of one text.
  int64_t tensors = 100'000;
};

/// Reads the pickle that begins at `begin` of `file`. A pure function; throws Error (exit code 4) with the byte's place in `file`
/// and the name or opcode that is refused.
Pickle parse_pickle(std::span<const std::byte> file, int64_t begin = 0, const PickleLimits& limits = {});

}  // namespace galley
