#include "libcore/infer/batch_types.h"

#include "libcore/runtime/execution.h"
#include "libcore/tensor/batch.h"

namespace galley {

Shape BatchTypes::sample() const {
  Shape shape;
  for (int axis = 1; axis < input().shape.rank(); ++axis) shape.push_back(input().shape[axis]);
  return shape;
}

std::string pixels_text(const BatchTypes& types) {
  std::string text;
  const auto list = [&](const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) text += cat(i == 0 ? "[" : ",", values[i], i + 1 == values.size() ? "]" : "");
  };
  for (const auto& [field, conversion] : types.pixels) {
    text += cat(" pixels of ", field, conversion.scale ? " (x / 255 - " : " (x - ");
    list(conversion.mean);
    text += ") / ";
    list(conversion.std);
  }
  return text;
}

TensorType input_type(const ModelInput& input, int64_t batch) {
  TensorType type{.dtype = input.dtype};
  type.shape.push_back(batch);
  for (int64_t size : input.shape) type.shape.push_back(size);
  if (!input.names.empty()) {
    type.names.push_back("N");
    type.names.insert(type.names.end(), input.names.begin(), input.names.end());
  }
  return type;
}

void feed_fields(Execution& execution, const Batch& batch) {
  for (const auto& [name, tensor] : batch.fields) {
    if (execution.takes(name)) execution.feed(name, tensor);
  }
}

}  // namespace galley
