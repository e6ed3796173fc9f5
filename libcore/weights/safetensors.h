#pragma once
// The safetensors format: 8 bytes of header length (little endian), a JSON header, then the values. Read with every rule of
// the format enforced before anything is allocated, mapped without copies; written in logical order or channels_last, with a
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

/// `__metadata__` of a file. Keys of Galley's own begin with "galley."; "galley.digest" and "galley.digest.<tensor>" are
/// added by the writer.
using Metadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  std::string dtype_text;      ///< As the file says: "F32", "F8_E4M3", ...
  std::optional<DType> dtype;  ///< None: a type of the format that Galley does not compute with.
  Shape shape;                 ///< Logical.
  MemoryFormat format;         ///< How the values lie: `galley.memory_format` of the file says so, else contiguous.
  int64_t begin = 0;           ///< Bytes from the start of the file.
  int64_t end = 0;
};

struct SafetensorsTable {
  std::vector<SafetensorsEntry> entries;  ///< In the order of their bytes.
  Metadata metadata;
  int64_t data_begin = 0;  ///< Where the header ends.
};

/// Largest header and most tensors that are accepted.
constexpr int64_t kSafetensorsHeaderLimit = 100'000'000;
constexpr int64_t kSafetensorsEntryLimit = 100'000;

/// Metadata key of files that hold tensors in other formats than contiguous: a JSON object, format by tensor. Such a tensor is stored
/// under its physical shape ([N,H,W,C]), so that a foreign reader sees a mismatch of shapes and never wrong numbers.
inline constexpr std::string_view kMemoryFormatKey = "galley.memory_format";

/// The table of a file of these bytes. A pure function; throws Error (exit code 4) naming the rule that is broken and the
/// tensor. Looks at the header only: `file` may be the first bytes of a file of `file_bytes` bytes.
SafetensorsTable parse_safetensors(std::span<const std::byte> file, int64_t file_bytes);
inline SafetensorsTable parse_safetensors(std::span<const std::byte> file) {
  return parse_safetensors(file, static_cast<int64_t>(file.size()));
}

/// A mapped file. Tensors read from it share the mapping and outlive this object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return table_.entries; }
  const Metadata& metadata() const { return table_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const;
  /// The values, contiguous and not to be written: without a copy where the file has them so and aligns them to their element size,
  /// else copied.
  Tensor read(const SafetensorsEntry& entry) const { return read_stored(entry).to(MemoryFormat::contiguous()); }
  /// The same in the format in which they are stored.
  Tensor read_stored(const SafetensorsEntry& entry) const;
  /// Throws where there is no tensor of that name (naming the nearest).
  Tensor read(std::string_view name) const;
  /// Whether the file carries digests (files of other programs do not).
  bool has_digests() const;
  /// Checks the header's and every tensor's digest, reading the file anew; throws an Error that names the first damaged
  /// tensor. Does nothing for a file without digests.
  void verify() const;
  /// Digest of the length field and the header.
  std::string header_digest() const;

 private:
  std::string_view header() const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  SafetensorsTable table_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// A tensor to be written: its type now, its values when their turn comes, so that no second copy of a model is ever needed.
struct TensorSource {
  TensorSource(std::string name, Tensor tensor);
  TensorSource(std::string name, DType dtype, Shape shape, std::function<Tensor()> values, MemoryFormat format = {})
      : name(std::move(name)), dtype(dtype), shape(std::move(shape)), values(std::move(values)), format(std::move(format)) {}

  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> values;  ///< Any memory format, that dtype and shape.
  MemoryFormat format;             ///< In the file: contiguous or channels_last (not blocked).
};

struct WrittenTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::string digest;
};
struct WrittenFile {
  int64_t bytes = 0;
  std::string header_digest;  ///< As SafetensorsFile::header_digest.
  std::vector<WrittenTensor> tensors;
};

/// Digest of a set of tensors, as result.json gives it for the parameters: XXH3-128 of one line a tensor, sorted by the bytes of the names,
/// "DIGEST DTYPE SHAPE NAME\n". DIGEST is that of the contiguous little-endian values (`galley.digest.NAME` in Galley's own files), DTYPE
/// is as in recipes (f32), SHAPE is as in "[64,3,7,7]" ("[]" for a scalar). The order of `tensors` and their memory formats do not matter.
std::string digest_of_tensors(std::span<const TensorSource> tensors);

/// Writes the file (durable when this returns) and returns its digests, computed from memory while writing. Tensors lie in the
/// given order, those of wider elements first, so that each is aligned. Throws Error (exit code 7) where the disk fails.
WrittenFile write_safetensors(const std::string& path, std::span<const TensorSource> tensors, const Metadata& metadata,
                              Publish publish = Publish::kRename);

}  // namespace galley
