#pragma once
// A weights file of any format: safetensors, PyTorch's .pth in both forms, the initializers of an ONNX model, or the manifest of a
// checkpoint that ranks wrote in parts. The format is detected from the contents, not from the name.

#include <memory>
#include <string>
#include <vector>

#include "libcore/weights/match.h"
#include "libcore/weights/safetensors.h"

namespace galley {

class Checkpoint;
class PthFile;
class OnnxFile;
struct ManifestTensor;

/// Result of checking a file's values.
struct FileCheck {
  int64_t checked_bytes = 0;  ///< Bytes of values whose checksum was compared.
  int64_t value_bytes = 0;
  std::string reason;  ///< Why the rest could not be checked; "" if everything was.
  bool complete() const { return checked_bytes == value_bytes; }
};

/// An open file of weights.
class WeightsFile {
 public:
  /// Opens the file and checks its structure. Throws Error (exit code 4).
  explicit WeightsFile(const std::string& path);
  ~WeightsFile();
  WeightsFile(WeightsFile&&) noexcept;
  WeightsFile& operator=(WeightsFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// The name of the format: "safetensors", "PyTorch zip", "PyTorch before 1.6", "ONNX", "checkpoint".
  std::string format() const;
  /// The weights, in the file's order.
  const std::vector<OfferedTensor>& tensors() const { return tensors_; }
  /// Tensors that are not weights (e.g. an optimizer's state), with full names.
  const std::vector<OfferedTensor>& others() const { return others_; }
  /// The key of the dictionary with the weights; "" for the whole file.
  const std::string& chosen() const { return chosen_; }
  /// Empty for files of other programs.
  const Metadata& metadata() const;
  /// Why the names of a model may be missing here, with a suggested fix; "" if the format does not explain it.
  std::string misfit_hint() const;
  /// The values of tensors()[index], contiguous and read-only; mapped if they are aligned in the file.
  Tensor read(size_t index) const;
  /// Takes the pages of values that were read out of memory; reading them again is possible.
  void release() const;
  /// Bytes of the values of tensors().
  int64_t value_bytes() const;
  /// Reads the file again and compares all its checksums. Throws Error (exit code 4) if something is damaged.
  FileCheck verify() const;

 private:
  std::string path_;
  std::unique_ptr<const SafetensorsFile> safetensors_;
  std::unique_ptr<const PthFile> pth_;
  std::unique_ptr<const OnnxFile> onnx_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::vector<OfferedTensor> tensors_, others_;
  std::string chosen_;
  std::vector<const ManifestTensor*> stored_;  // of a checkpoint: tensors_
  Metadata metadata_;                          // of a checkpoint
};

}  // namespace galley
