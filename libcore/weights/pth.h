#pragma once
// Files of torch.save (.pth, .pt, .bin): the zip format of PyTorch 1.6 and later, and the older format of concatenated pickles. Read
// without Python (pickle.h) and mapped.
//
// Selection of the weights: the tensors of the top-level dictionary if it contains tensors directly; otherwise those below the first of its
// keys state_dict, model_state_dict, model, module, net, network, weights, params, generator that contains any; otherwise all tensors.
// Names are the keys on the path, joined by dots. Other tensors (e.g. an optimizer's state) are listed as `others`.

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/tensor/tensor.h"
#include "libcore/weights/pickle.h"
#include "libcore/weights/zip.h"

namespace galley {

/// A tensor: a strided view of a storage.
struct PthTensor {
  std::string name;
  const TorchType* type = nullptr;
  Shape shape;
  Shape strides;       ///< Strides in elements.
  size_t storage = 0;  ///< Index into PthTable::storages.
  int64_t offset = 0;  ///< Offset in elements from the start of the storage.
};

/// The values of one or more tensors.
struct PthStorage {
  std::string key;
  int64_t begin = 0;  ///< Byte offset in the file.
  int64_t end = 0;
};

/// The form of a file: a zip archive, or concatenated pickles (before PyTorch 1.6).
enum class PthForm { kZip, kLegacy };

/// The contents of a file.
struct PthTable {
  PthForm form = PthForm::kZip;
  std::string chosen;              ///< The key whose dictionary contains the weights; "" for the top level.
  std::vector<PthTensor> tensors;  ///< The weights, in the file's order.
  std::vector<PthTensor> others;   ///< Other tensors, with full names.
  std::vector<PthStorage> storages;
  std::vector<ZipEntry> entries;  ///< kZip: all entries of the archive.
};

/// Parses a file. A pure function; throws Error (exit code 4). Checks the checksum of what it reads (the pickle), not of the values.
PthTable parse_pth(std::span<const std::byte> file);

/// Whether a file begins like a file of torch.save (including TorchScript archives and the tar format of 2016, which parse_pth rejects).
bool is_pth(std::span<const std::byte> file);

/// A mapped file. Tensors read from it share the mapping and may outlive this object.
class PthFile {
 public:
  explicit PthFile(const std::string& path);

  const std::string& path() const { return path_; }
  const PthTable& table() const { return table_; }
  /// The values, contiguous in logical order, without a copy if the file stores them so and aligned.
  Tensor read(const PthTensor& tensor) const;
  /// Reads the file again and checks its checksums; throws Error naming the first damaged entry and its tensors. Returns how many bytes of
  /// values have a checksum: none in the older format and in archives saved without checksums.
  int64_t verify() const;
  /// Total size in bytes of all storages.
  int64_t value_bytes() const;
  /// As SafetensorsFile::release.
  void release() const { file_->release(); }

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  PthTable table_;
};

}  // namespace galley
