#pragma once
// A recipe's model with its weights as an ONNX file, as inference runs it.

#include <map>
#include <string>
#include <vector>

#include "libcore/infer/session.h"

namespace galley {

struct ExportOptions {
  int64_t batch = 0;           // samples of a run; 0: the file leaves it open
  std::vector<int64_t> shape;  // of one sample; empty: the model's usual input
  bool fold = false;           // batch norms become part of the weights before them
  std::map<std::string, std::string> metadata;
};
struct ExportReport {
  int64_t bytes = 0, nodes = 0, initializers = 0;
  std::string scheme;     // "float", or the plan of quantization in a line
  std::string data_file;  // name of the file that holds the values of a model above 2 GiB, beside it; "" for others
};

/// Writes the model: parameters keep their names. Weights that are quantized statically become QuantizeLinear and DequantizeLinear around
/// operators on floats, stored ones (weight_only) DequantizeLinear. Throws Error (exit code 3) naming what has no form in ONNX: an operator
/// and its module, dynamic quantization.
ExportReport export_onnx(const Session& session, const std::string& path, const ExportOptions& options);

}  // namespace galley
