#pragma once
// Writes ONNX files. Values of initializers are requested one at a time while writing, so no second copy of a model is needed.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libcore/onnx/onnx.h"

namespace galley {

/// An initializer; its values are requested when they are written.
struct OnnxSource {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> values;  ///< Returns the values with that dtype and shape, in any memory format.
};

/// The contents of a file to write.
struct OnnxDocument {
  std::string graph_name = "model", doc;
  int64_t ir_version = 8, opset = 17;
  std::vector<OnnxNode> nodes;  ///< Tensor attributes store their values in `values`.
  std::vector<OnnxSource> initializers;
  std::vector<OnnxValue> inputs, outputs;
  std::map<std::string, std::string> metadata;  ///< The writer adds the digests.
};

/// Facts about a written file.
struct OnnxWritten {
  int64_t bytes = 0;      ///< Total size of the model and the data file.
  std::string data_file;  ///< Name, in the same folder, of the file with the large values; "": none.
};

/// Largest file of the format (protocol buffers have 31-bit sizes).
constexpr int64_t kOnnxLargestFile = (int64_t{1} << 31) - 1;

/// Writes the file durably, with a digest of all preceding bytes at its end. If it would exceed `largest` bytes, large values are written
/// to PATH.data-<16 hexadecimal digits of its digest> next to it. The data file is complete before the model gets its name, and the data
/// file of a replaced model is removed afterwards, so a complete model of that name exists at any time. Throws Error (exit code 7) if
/// writing fails.
OnnxWritten write_onnx(const std::string& path, const OnnxDocument& document, int64_t largest = kOnnxLargestFile);

}  // namespace galley
