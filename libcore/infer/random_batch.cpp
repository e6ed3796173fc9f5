#include "libcore/infer/random_batch.h"

#include <algorithm>

#include "libcore/base/philox.h"
#include "libcore/nn/language_model.h"
#include "libcore/tensor/field_names.h"

namespace galley {
namespace {

void fill_random(Tensor& tensor, RandomStream stream, int64_t below) {
  if (tensor.dtype() == DType::kF32) {
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.data_as<float>()[i] = static_cast<float>(2 * stream.uniform() - 1);
    return;
  }
  // Integers and booleans.
  const int64_t values = tensor.dtype() == DType::kBool ? 2 : std::max<int64_t>(1, below);
  std::vector<double> drawn(static_cast<size_t>(tensor.elements()));
  for (double& value : drawn) value = static_cast<double>(stream.below(static_cast<uint64_t>(values)));
  tensor.from_doubles(drawn);
}

/// Objects of a detector: as many in each sample as fit, of random size in an image of that size.
void fill_objects(Batch& batch, const FieldType& field, int64_t rows, int64_t side) {
  Tensor &offsets = batch.fields.at(field.name + ".offsets"), &values = batch.fields.at(field.name + ".values");
  const int64_t capacity = values.shape()[0] / rows;
  for (int64_t n = 0; n <= rows; ++n) offsets.data_as<int64_t>()[n] = n * capacity;
  RandomStream stream(0, "workload boxes", 0);
  if (field.kind == FieldKind::kClass) {
    for (int64_t i = 0; i < values.elements(); ++i)
      values.data_as<int64_t>()[i] = 1 + static_cast<int64_t>(stream.below(static_cast<uint64_t>(std::max<int64_t>(1, field.classes - 1))));
  }
  for (int64_t i = 0; i < values.elements() && field.kind == FieldKind::kMask; ++i) values.data_as<uint8_t>()[i] &= 1;
  for (int64_t i = 0; i < values.elements() && field.kind == FieldKind::kKeypoints; ++i)
    values.data_as<float>()[i] = i % 3 == 2 ? 2.0f : static_cast<float>(stream.uniform(0, static_cast<double>(side)));
  for (int64_t i = 0; i < values.shape()[0] && field.kind == FieldKind::kBoxes; ++i) {
    float* box = values.data_as<float>() + i * 4;
    for (int axis = 0; axis < 2; ++axis) {
      const double size = stream.uniform(0.05, 0.5), start = stream.uniform(0, 1 - size);
      box[axis] = static_cast<float>(start * static_cast<double>(side));
      box[axis + 2] = static_cast<float>((start + size) * static_cast<double>(side));
    }
  }
}

}  // namespace

Batch random_batch(const Session& session, const BatchTypes& types) {
  Batch batch;
  const int64_t classes = session.target_classes();
  const LanguageModelParams* text = language_model_params(session.model());
  for (const auto& [name, type] : types.fields) {
    const bool input = std::find(types.inputs.begin(), types.inputs.end(), name) != types.inputs.end();
    const bool first = input && name == types.inputs.front();
    Tensor tensor(type.dtype, type.shape);
    const std::string stream = first ? "workload input" : input ? "workload " + name : "workload target";
    const int64_t tokens = text != nullptr ? text->tokens() : session.tokens_of(types) == 0 ? 0 : classes;
    if (input && name.ends_with(".length")) {  // texts without padding
      tensor.from_doubles(std::vector<double>(static_cast<size_t>(tensor.elements()), static_cast<double>(types.input().shape[1])));
    } else {
      fill_random(tensor, RandomStream(0, stream, 0), !input ? classes : name == "token_type_ids" ? 1 : tokens);
    }
    const bool images = input && type.shape.rank() >= 4 && session.layout() != LayoutMode::kContiguous;
    batch.fields.emplace(name, images ? tensor.to(MemoryFormat::channels_last_for_rank(type.shape.rank())) : tensor);
  }
  batch.valid = types.input().shape[0];
  for (const std::string_view name : {kImageSize, kImageExtents}) {  // images that fill their array
    const auto found = batch.fields.find(std::string(name));
    if (found == batch.fields.end()) continue;
    std::vector<double> sides;
    for (int64_t n = 0; n < batch.valid; ++n)
      for (const int axis : {2, 3}) sides.push_back(static_cast<double>(types.input().shape[axis]));
    found->second.from_doubles(sides);
  }
  if (session.info().output == ModelOutput::kDetections) {
    for (const FieldType& field : session.task().targets()) {
      if (batch.fields.contains(field.name + ".offsets")) fill_objects(batch, field, batch.valid, types.input().shape[2]);
    }
  }
  return batch;
}

}  // namespace galley
