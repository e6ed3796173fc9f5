#include "libcore/infer/random_batch.h"

#include <algorithm>

#include "libcore/base/philox.h"
#include "libcore/nn/language_model.h"

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
    fill_random(tensor, RandomStream(0, stream, 0), input ? tokens : classes);
    const bool images = input && type.shape.rank() == 4 && session.layout() != LayoutMode::kContiguous;
    batch.fields.emplace(name, images ? tensor.to(MemoryFormat::channels_last()) : tensor);
  }
  batch.valid = types.input().shape[0];
  return batch;
}

}  // namespace galley
