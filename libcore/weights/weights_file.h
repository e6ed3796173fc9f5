#pragma once
// A file of weights, whatever its format: safetensors, PyTorch's .pth in both forms, or the initializers of an ONNX model. The format is
// told by the contents, not by the name.

#include <memory>
#include <string>
#include <vector>

#include "libcore/weights/match.h"
#include "libcore/weights/safetensors.h"

namespace galley {

class PthFile;
class OnnxFile;

/// What a check of a file's values could tell.
struct FileCheck {
  int64_t checked_bytes = 0;  ///< Of values whose checksum was compared.
  int64_t value_bytes = 0;
  std::string reason;  ///< Why the rest could not be checked; "" where all was.
  bool complete() const { return checked_bytes == value_bytes; }
};

class WeightsFile {
 public:
  /// Opens and checks the structure. Throws Error (exit code 4).
  explicit WeightsFile(const std::string& path);
  ~WeightsFile();
  WeightsFile(WeightsFile&&) noexcept;
  WeightsFile& operator=(WeightsFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// "safetensors", "PyTorch zip", "PyTorch before 1.6", "ONNX"
  std::string format() const;
  /// What a model can take, in the file's order.
  const std::vector<OfferedTensor>& tensors() const { return tensors_; }
  /// Tensors that are not weights (an optimizer's state), under their full names.
  const std::vector<OfferedTensor>& others() const { return others_; }
  /// The key of the file whose dictionary tensors() is; "" for the whole file.
  const std::string& chosen() const { return chosen_; }
  /// Empty for files of other programs.
  const Metadata& metadata() const;
  /// Why a model's names may be missing here, with a cure; "" where nothing of the format explains it.
  std::string misfit_hint() const;
  /// Contiguous values of tensors()[index], mapped where they lie aligned in the file; not to be written.
  Tensor read(size_t index) const;
  /// Compares all checksums that the file has, reading it anew. Throws Error (exit code 4) naming what is damaged.
  FileCheck verify() const;

 private:
  std::string path_;
  std::unique_ptr<const SafetensorsFile> safetensors_;
  std::unique_ptr<const PthFile> pth_;
  std::unique_ptr<const OnnxFile> onnx_;
  std::vector<OfferedTensor> tensors_, others_;
  std::string chosen_;
  Metadata no_metadata_;
};

}  // namespace galley
