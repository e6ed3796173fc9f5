#pragma once
// Inputs and outputs of an ONNX model: their names and shapes, and whether their first dimension counts samples.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// An input of the file that needs values.
struct FileInput {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> sample;                   // sizes of one sample
  std::vector<std::optional<int64_t>> declared;  // sizes that the file declares; nullopt: open
  std::string text;                              // the declared shape, for messages: "[N,3,?,224]"
};

/// How samples are stored in the file's inputs and outputs.
enum class SampleUse : uint8_t {
  kRows,   ///< One row per sample, for any batch.
  kFixed,  ///< One row per sample, only for the declared batch: other batches do not fit the model's sizes.
  kWhole,  ///< A run computes one sample: there is no batch dimension, or the model mixes samples.
};

/// Inputs and outputs of a file, and how they hold samples.
struct FileLayout {
  std::vector<FileInput> inputs;     // inputs that need values, in the file's order
  std::vector<std::string> outputs;  // the main one first
  SampleUse use = SampleUse::kRows;
  std::string reason;       // the reason if `use` is not kRows
  int64_t fixed_batch = 0;  // the batch that the model requires; 0: any
  std::optional<int64_t> declared_batch;
  NodeSet batch_nodes;   // nodes with the declared batch in their constant sizes
  int output_rank = -1;  // rank of the main output with a batch dimension; -1: unknown
};

/// Finds the layout; cached per file and arguments. `shape`: sample shape of a single input; `shapes`: sample shapes by input name;
/// `outputs`: names of the wanted outputs, empty for all. Throws Error: kInput for problems in the file, kRecipe for wrong options.
std::shared_ptr<const FileLayout> find_layout(const std::shared_ptr<const Source>& source, const std::vector<int64_t>& shape,
                                              const std::map<std::string, std::vector<int64_t>>& shapes,
                                              const std::vector<std::string>& outputs);

/// Imports the model for a batch of inputs (in the layout's order). Returns the outputs by their names in the file.
NamedValues capture_file(Builder& b, const std::shared_ptr<const Source>& source, const FileLayout& layout, const NamedValues& inputs);

}  // namespace galley::onnx_import
