#include "libcore/train/mesh_state.h"

#include <algorithm>
#include <cstring>

#include "libcore/train/tensor_state.h"

namespace galley {

MeshState::MeshState(Communicator& all, Communicator& tensor, std::unique_ptr<ShardedState> ranges, ParameterStore& store,
                     const TensorDivisions& divisions, const std::vector<ParameterSpec>& parameters, const std::vector<StateSpec>& states)
    : DividedState(all), all_(all), tensor_(tensor), ranges_(std::move(ranges)), store_(store) {
  const std::map<std::string, std::string> ranged = ranges_->arrays();
  for (const ParameterSpec& spec : parameters) {
    const auto found = divisions.find(spec.name);
    if (found == divisions.end()) continue;
    const auto add = [&](const std::string& name, bool parameter) {
      matrices_[name] = {.division = &found->second, .whole = spec.type.shape, .parameter = parameter};
    };
    if (store_.has(spec.name)) add(spec.name, true);
    for (const StateSpec& state : states) {  // others are whole: of another shape than the parameter
      if (state.of == spec.name && state.type.shape == found->second.shape(spec.type.shape, tensor.rank(), tensor.size()))
        add(state.name, false);
    }
    for (const auto& [name, parameter] : ranged) {
      if (parameter == spec.name) add(name, name == spec.name);
    }
  }
  for (const auto& [name, parameter] : ranged) names_.push_back(name);
  for (const auto& [name, matrix] : matrices_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
}

void MeshState::load(const std::string& name, DType dtype, const Shape& shape,
                     const std::function<void(int64_t begin, std::span<std::byte> to)>& read) {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) return ranges_->load(name, dtype, shape, read);
  const Matrix& matrix = found->second;
  GALLEY_CHECK_INPUT(dtype == dtype_of(name) && shape == matrix.whole, "the tensor ", name, " is ", dtype_name(dtype), " ", shape, ", not ",
                     dtype_name(dtype_of(name)), " ", matrix.whole);
  Tensor whole(dtype, shape);
  read(0, {static_cast<std::byte*>(whole.data()), static_cast<size_t>(whole.bytes())});
  const Tensor part = part_of(whole, *matrix.division, tensor_.rank(), tensor_.size());
  if (!ranges_->has(name)) return store_.set(name, part);
  ranges_->load(name, dtype, part.shape(), [&](int64_t begin, std::span<std::byte> to) {
    std::memcpy(to.data(), static_cast<const std::byte*>(part.data()) + begin * dtype_size(dtype), to.size());
  });
}

DType MeshState::dtype_of(const std::string& name) const {
  return ranges_->has(name) ? ranges_->dtype_of(name) : store_.tensor(name).dtype();
}

Tensor MeshState::gather(const std::string& name) {
  const Tensor part = ranges_->has(name) ? ranges_->whole(name) : store_.get(name);
  const auto found = matrices_.find(name);
  return found == matrices_.end() ? part : gather_parts(tensor_, name, part, found->second.whole, *found->second.division);
}

/// What only ranges are of is equal on all ranks that divide matrices: the first one of each writes it.
std::vector<CheckpointPiece> MeshState::pieces() {
  std::vector<CheckpointPiece> pieces;
  if (tensor_.rank() == 0) pieces = ranges_->pieces();
  std::erase_if(pieces, [&](const CheckpointPiece& piece) { return matrices_.count(piece.name) > 0; });
  const int64_t rank = all_.rank(), count = all_.size();
  for (const auto& [name, matrix] : matrices_) {
    if (name.ends_with(".grad")) continue;
    const Tensor whole = gather(name);
    const int64_t elements = whole.elements(), begin = elements * rank / count, end = elements * (rank + 1) / count;
    if (begin == end) continue;
    Tensor part(whole.dtype(), Shape{end - begin});
    std::memcpy(part.data(), static_cast<const std::byte*>(whole.data()) + begin * dtype_size(whole.dtype()),
                static_cast<size_t>(part.bytes()));
    pieces.push_back(
        {matrix.parameter ? "parameters" : "optimizer", name, whole.dtype(), matrix.whole, begin, end, [part] { return part; }});
  }
  ranges_->forget();
  return pieces;
}

TensorSource MeshState::source(const std::string& name) {
  const auto place = std::lower_bound(names_.begin(), names_.end(), name) - names_.begin();
  const auto found = matrices_.find(name);
  const Shape shape = found != matrices_.end() ? found->second.whole : ranges_->source(name).shape;
  return {name, dtype_of(name), shape, [this, place] { return request(place); }};
}

}  // namespace galley
