#pragma once
// BatchTypes: the tensor types of a batch, for which a model is captured and compiled.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/tensor_type.h"
#include "libcore/nn/zoo.h"
#include "libcore/tensor/pixels.h"

namespace galley {

class Execution;
struct Batch;

/// Types of the tensors of one batch by name, as the loader makes them.
struct BatchTypes {
  std::map<std::string, TensorType> fields;
  PixelConversions pixels;          ///< Of the fields in bytes.
  std::vector<std::string> inputs;  ///< Names of the model's inputs, in its order.

  /// Type of the model's first input.
  const TensorType& input() const { return fields.at(inputs.front()); }
  TensorType& input() { return fields.at(inputs.front()); }
  /// Shape of one sample of that input, without the batch.
  Shape sample() const;
};

/// The conversions as text, for keys of programs: "", or " pixels of input (x / 255 - [0.5]) / [0.25]".
std::string pixels_text(const BatchTypes& types);
/// Feeds the tensors of a batch that are inputs of the program.
void feed_fields(Execution& execution, const Batch& batch);
/// The type of an input for `batch` samples of the model's default shape.
TensorType input_type(const ModelInput& input, int64_t batch);

}  // namespace galley
