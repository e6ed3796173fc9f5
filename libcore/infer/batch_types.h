#pragma once
// BatchTypes: what a model is captured and compiled for.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/tensor_type.h"
#include "libcore/nn/zoo.h"

namespace galley {

class Execution;
struct Batch;

/// Types of the tensors of one batch by name, as its loader makes them.
struct BatchTypes {
  std::map<std::string, TensorType> fields;
  std::vector<std::string> inputs;  // names of those that the model takes, in its order

  /// Of the model's first input.
  const TensorType& input() const { return fields.at(inputs.front()); }
  TensorType& input() { return fields.at(inputs.front()); }
};

/// Feeds the tensors of a batch that the program takes.
void feed_fields(Execution& execution, const Batch& batch);
/// The type of a batch of a model's input, in the size that the model says.
TensorType input_type(const ModelInput& input, int64_t batch);

}  // namespace galley
