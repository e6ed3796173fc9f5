#pragma once
// Writing an ONNX file: the values of tensors are asked for when their turn comes, so that no second copy of a model is ever needed.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libcore/onnx/onnx.h"

namespace galley {

/// An initializer: its type now, its values when they are written.
struct OnnxSource {
  std::string name;
  DType dtype;
  Shape shape;
  std::function<Tensor()> values;  ///< That dtype and shape; any memory format.
};

struct OnnxDocument {
  std::string graph_name = "model", doc;
  int64_t ir_version = 8, opset = 17;
  std::vector<OnnxNode> nodes;  ///< Attributes of tensors hold them in `values`.
  std::vector<OnnxSource> initializers;
  std::vector<OnnxValue> inputs, outputs;
  std::map<std::string, std::string> metadata;  ///< The digests are the writer's.
};

struct OnnxWritten {
  int64_t bytes = 0;      ///< Of both files.
  std::string data_file;  ///< Name, in the same folder, of the file that holds the large values; "" where there is none.
};

/// The end of a file in the format (protocol buffers count in 31 bits).
constexpr int64_t kOnnxLargestFile = (int64_t{1} << 31) - 1;

/// Writes the file (durable when this returns), a digest of all before it at its end. Values that would take it past `largest` bytes lie in
/// a file beside it, PATH.data-<16 hexadecimal digits of its digest>: it is complete before the model that names it takes its name, and
/// that of a model which is replaced is removed afterwards, so that there is a whole model of that name at any moment. Throws Error (exit
/// code 7) where the disk fails.
OnnxWritten write_onnx(const std::string& path, const OnnxDocument& document, int64_t largest = kOnnxLargestFile);

}  // namespace galley
