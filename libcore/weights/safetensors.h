#pragma once
// The safetensors format: 8 bytes of header length (little-endian), a JSON header, then the values. The reader enforces every rule of the
// format before it allocates memory and maps the file without copies. The writer stores tensors in logical order or channels_last, with a
// digest per tensor and one of the header, durably. Format: https://github.com/huggingface/safetensors (README, "Format").

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The `__metadata__` of a file. Galley's keys begin with "galley."; the writer adds "galley.digest" and "galley.digest.<tensor>".
using Metadata = std::map<std::string, std::string>;

/// A tensor in a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_text;      ///< The type in the file: "F32", "F8_E4M3", ...
  std::optional<DType> dtype;  ///< nullopt if Galley does not support the type.
  Shape shape;                 ///< Logical.
  MemoryFormat format;         ///< Format of the values: from `galley.memory_format` in the file, otherwise contiguous.
  int64_t begin = 0;           ///< Byte offset in the file.
  int64_t end = 0;
};

/// The contents of a header.
struct SafetensorsTable {
  std::vector<SafetensorsEntry> entries;  ///< Sorted by offset.
  Metadata metadata;
  int64_t data_begin = 0;  ///< Offset of the values, i.e. the end of the header.
};

/// Limits of the header in bytes and of the number of tensors.
constexpr int64_t kSafetensorsHeaderLimit = 100'000'000;
constexpr int64_t kSafetensorsEntryLimit = 100'000;

/// Metadata key of files with tensors that are not contiguous: a JSON object from tensor to format. Such a tensor is stored with its
/// physical shape ([N,H,W,C]), so that other readers see a shape mismatch and never wrong values.
inline constexpr std::string_view kMemoryFormatKey = "galley.memory_format";

/// Parses a file. A pure function; throws Error (exit code 4) naming the tensor and the violated rule. Reads only the header: `file` may
/// contain only the first bytes of a file of `file_bytes` bytes.
SafetensorsTable parse_safetensors(std::span<const std::byte> file, int64_t file_bytes);
inline SafetensorsTable parse_safetensors(std::span<const std::byte> file) {
  return parse_safetensors(file, static_cast<int64_t>(file.size()));
}

/// A mapped file. Tensors read from it share the mapping and may outlive this object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return table_.entries; }
  const Metadata& metadata() const { return table_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const;
  /// The values, contiguous and read-only, without a copy if the file stores them contiguous and aligned to their element size.
  Tensor read(const SafetensorsEntry& entry) const { return read_stored(entry).to(MemoryFormat::contiguous()); }
  /// The values in the format in which they are stored.
  Tensor read_stored(const SafetensorsEntry& entry) const;
  /// The values of the tensor with that name; throws Error, with a similar name, if there is none.
  Tensor read(std::string_view name) const;
  /// Whether the file contains digests (files of other programs do not).
  bool has_digests() const;
  /// Reads the file again and checks the digests of the header and of every tensor; throws Error naming the first damaged tensor. Does
  /// nothing for a file without digests.
  void verify() const;
  /// Digest of the length field and the header.
  std::string header_digest() const;
  /// Takes the pages of values that were read out of memory; reading them again is possible.
  void release() const { file_->release(); }

 private:
  std::string_view header() const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  SafetensorsTable table_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// A tensor to be written. Its values are requested when they are written, so no second copy of a model is needed.
struct TensorSource {
  TensorSource(std::string name, Tensor tensor);
  TensorSource(std::string name, DType dtype, Shape shape, std::function<Tensor()> values, MemoryFormat format = {})
      : name(std::move(name)), dtype(dtype), shape(std::move(shape)), values(std::move(values)), format(std::move(format)) {}

  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> values;  ///< Returns the values with that dtype and shape, in any memory format.
  MemoryFormat format;             ///< Format in the file: contiguous or channels_last (not blocked).
};

/// A written tensor and the digest of its values.
struct WrittenTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::string digest;
};
/// Facts about a written file.
struct WrittenFile {
  int64_t bytes = 0;
  std::string header_digest;  ///< See SafetensorsFile::header_digest.
  std::vector<WrittenTensor> tensors;
};

/// Digest of a set of tensors, as in result.json for the parameters: XXH3-128 of one line per tensor, sorted bytewise by name, "DIGEST
/// DTYPE SHAPE NAME\n". DIGEST is the digest of the contiguous little-endian values (`galley.digest.NAME` in Galley's files), DTYPE is as
/// in recipes (f32), SHAPE is e.g. "[64,3,7,7]" ("[]" for a scalar). The order of `tensors` and their memory formats do not matter.
std::string digest_of_tensors(std::span<const TensorSource> tensors);

/// Writes the file durably and returns its digests, computed from memory while writing. Tensors are stored in the given order, but with
/// wider elements first, so that each tensor is aligned. Throws Error (exit code 7) if writing fails.
WrittenFile write_safetensors(const std::string& path, std::span<const TensorSource> tensors, const Metadata& metadata,
                              Publish publish = Publish::kRename);

}  // namespace galley
