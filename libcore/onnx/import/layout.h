#pragma once
// What a file's inputs and outputs are to Galley: which fields, of which shapes, and whether their first size counts samples.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

struct FileInput {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> sample;                   // sizes of one sample
  std::vector<std::optional<int64_t>> declared;  // what the file says of them
  std::string text;                              // the file's shape, for messages: "[N,3,?,224]"
};

/// How a sample lies in the file's inputs and outputs.
enum class SampleUse : uint8_t {
  kRows,   ///< A row of each; any number of them.
  kFixed,  ///< A row of each, as many as the file says: its sizes fit no other number.
  kWhole,  ///< All of each: the file has no dimension that counts samples, or they meet.
};

struct FileLayout {
  std::vector<FileInput> inputs;     // those that are fed, in the file's order
  std::vector<std::string> outputs;  // the main one first
  SampleUse use = SampleUse::kRows;
  std::string why;          // not kRows
  int64_t fixed_batch = 0;  // samples that every batch must have; 0: any number
  std::optional<int64_t> declared_batch;
  NodeSet spelled;       // nodes that spell it in their sizes
  int output_rank = -1;  // of the main output of a batch; -1: not known
};

/// `shape`: of a sample of the one input; `shapes`: by the names of several; `outputs`: chosen ones, or all. Found once for a file and
/// these. Throws (kInput) what the file does not allow, (kRecipe) what the options do not.
std::shared_ptr<const FileLayout> find_layout(const std::shared_ptr<const Source>& source, const std::vector<int64_t>& shape,
                                              const std::map<std::string, std::vector<int64_t>>& shapes,
                                              const std::vector<std::string>& outputs);

/// The model on a batch of such inputs, in their order. Returns the outputs by their names in the file.
NamedValues capture_file(Builder& b, const std::shared_ptr<const Source>& source, const FileLayout& layout, const NamedValues& inputs);

}  // namespace galley::onnx_import
