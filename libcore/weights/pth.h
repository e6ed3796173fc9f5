#pragma once
// Files of torch.save (.pth, .pt, .bin): the zip form of PyTorch 1.6 and later, and the older form of pickles in a row. Read
// without Python (pickle.h) and mapped.
//
// Which tensors are the weights: those of the dictionary at the top, where it holds tensors of its own; else those below the
// first of its keys state_dict, model_state_dict, model, module, net, network, weights, params, generator that holds any; else all. Names
// are the keys on the way, joined by dots. What lies elsewhere (an optimizer's state) is listed as `others`.

#include <memory>
#include <string>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/tensor/tensor.h"
#include "libcore/weights/pickle.h"
#include "libcore/weights/zip.h"

namespace galley {

struct PthTensor {
  std::string name;
  const TorchType* type = nullptr;
  Shape shape;
  Shape strides;       ///< In elements.
  size_t storage = 0;  ///< Index into PthTable::storages.
  int64_t offset = 0;  ///< Elements from the storage's start.
};

struct PthStorage {
  std::string key;
  int64_t begin = 0;  ///< Bytes from the start of the file.
  int64_t end = 0;
};

enum class PthForm { kZip, kLegacy };

struct PthTable {
  PthForm form = PthForm::kZip;
  std::string chosen;              ///< The key whose dictionary the weights are; "" for the top.
  std::vector<PthTensor> tensors;  ///< In the file's order.
  std::vector<PthTensor> others;   ///< Under their full names.
  std::vector<PthStorage> storages;
  std::vector<ZipEntry> entries;  ///< kZip: all of the archive.
};

/// The table of a file of these bytes. A pure function; throws Error (exit code 4). The values are not looked at, the checksums of
/// what is (the pickle) are checked.
PthTable parse_pth(std::span<const std::byte> file);

/// Whether a file begins as torch.save's files do (also those that are then refused: a TorchScript archive, a tar of 2016).
bool is_pth(std::span<const std::byte> file);

/// A mapped file. Tensors read from it share the mapping and outlive this object.
class PthFile {
 public:
  explicit PthFile(const std::string& path);

  const std::string& path() const { return path_; }
  const PthTable& table() const { return table_; }
  /// The values, contiguous in logical order: without a copy where they lie so in the file, aligned.
  Tensor read(const PthTensor& tensor) const;
  /// Checks the archive's checksums, reading the file anew; throws an Error that names the first damaged entry and its tensors.
  /// Returns how many bytes of values have a checksum: older forms, and archives saved without, have none.
  int64_t verify() const;
  /// Bytes of all storages.
  int64_t value_bytes() const;

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  PthTable table_;
};

}  // namespace galley
