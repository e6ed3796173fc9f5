#pragma once
// Exports the inference graph of a recipe's model with its weights as an ONNX file.

#include <map>
#include <string>
#include <vector>

#include "libcore/infer/session.h"

namespace galley {

/// Options of export_onnx.
struct ExportOptions {
  int64_t batch = 0;           ///< Samples per run; 0: any number.
  std::vector<int64_t> shape;  ///< Of one sample; empty: the model's default.
  bool cache = true;           ///< A decoder's file has the keys and values of earlier tokens as inputs and results.
  bool fold = false;           ///< Fold batch norms into the preceding weights.
  std::map<std::string, std::string> metadata;
};
/// Facts about the written file.
struct ExportReport {
  int64_t bytes = 0, nodes = 0, initializers = 0;
  std::string scheme;     ///< "float", or a summary of the quantization plan.
  std::string data_file;  ///< Name of the file in the same folder with the values of a model above 2 GiB; else "".
};

/// Writes the model; parameters keep their names. Static quantization becomes QuantizeLinear and DequantizeLinear around operators on
/// floats, weight_only becomes DequantizeLinear. Throws Error (exit code 3) for dynamic quantization, and for an operator that ONNX cannot
/// express, with its module.
ExportReport export_onnx(const Session& session, const std::string& path, const ExportOptions& options);

}  // namespace galley
