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
  std::map<std::string, std::string> metadata;  ///< galley.digest is the writer's.
};

/// Writes the file (durable when this returns), a digest of all before it at its end. Returns its bytes. Throws Error: exit code 3 where it would pass
/// the 2 GiB of the format, 7 where the disk fails.
int64_t write_onnx(const std::string& path, const OnnxDocument& document);

}  // namespace galley
