#include "libcore/train/tensor_state.h"

#include <cstring>

namespace galley {
namespace {

/// The elements [begin, end), -1: to the end.
Tensor flat_part(const Tensor& values, int64_t begin, int64_t end) {
  Tensor part(values.dtype(), Shape{(end < 0 ? values.elements() : end) - begin});
  std::memcpy(part.data(), static_cast<const std::byte*>(values.data()) + begin * dtype_size(values.dtype()),
              static_cast<size_t>(part.bytes()));
  return part;
}

}  // namespace

TensorState::TensorState(Communicator& ranks, ParameterStore& store, const TensorDivisions& divisions,
                         const std::vector<ParameterSpec>& parameters, const std::vector<StateSpec>& states, bool writes)
    : DividedState(ranks, writes), ranks_(ranks), store_(store), writes_(writes) {
  std::map<std::string, const ParameterSpec*> specs;
  for (const ParameterSpec& spec : parameters) {
    const auto found = divisions.find(spec.name);
    if (found == divisions.end()) continue;
    specs[spec.name] = &spec;
    add(spec.name, "parameters", spec.type.dtype, spec.type.shape, found->second);
  }
  for (const StateSpec& state : states) {
    const auto found = specs.find(state.of);
    // Others are whole: a state of another shape than its parameter.
    if (found == specs.end()) continue;
    const Shape& whole = found->second->type.shape;
    const TensorDivision& division = divisions.at(state.of);
    if (state.type.shape == division.shape(whole, ranks.rank(), ranks.size()))
      add(state.name, "optimizer", state.type.dtype, whole, division);
  }
}

void TensorState::add(const std::string& name, const std::string& group, DType dtype, const Shape& whole, const TensorDivision& division) {
  places_[name] = arrays_.size();
  arrays_.push_back({.name = name, .group = group, .dtype = dtype, .whole = whole, .division = division});
}

void TensorState::load(const std::string& name, DType dtype, const Shape& shape,
                       const std::function<void(int64_t begin, std::span<std::byte> to)>& read) {
  const Array& array = arrays_[places_.at(name)];
  GALLEY_CHECK_INPUT(dtype == array.dtype && shape == array.whole, "the tensor ", name, " is ", dtype_name(dtype), " ", shape, ", not ",
                     dtype_name(array.dtype), " ", array.whole);
  Tensor whole(dtype, shape);
  read(0, {static_cast<std::byte*>(whole.data()), static_cast<size_t>(whole.bytes())});
  store_.set(name, part_of(whole, array.division, ranks_.rank(), ranks_.size()));
}

Tensor gather_parts(Communicator& ranks, const std::string& name, const Tensor& own, const Shape& whole, const TensorDivision& division) {
  Tensor all(own.dtype(), whole);
  for (int r = 0; r < ranks.size(); ++r) {
    Tensor part = r == ranks.rank() ? own : Tensor(own.dtype(), division.shape(whole, r, ranks.size()));
    ranks.broadcast(name, part.data(), part.bytes(), DType::kI8, r);
    place_part(all, part, division, r, ranks.size());
  }
  return all;
}

Tensor TensorState::gather(const Array& array) const {
  return gather_parts(ranks_, array.name, store_.get(array.name), array.whole, array.division);
}

/// A rank writes one range of a tensor's elements. Rows are such a range; of columns and of blocks of rows, ranks exchange parts first, so
/// that each writes an equal range.
std::vector<CheckpointPiece> TensorState::pieces() {
  std::vector<CheckpointPiece> pieces;
  if (!writes_) return pieces;
  const int rank = ranks_.rank(), count = ranks_.size();
  for (const Array& array : arrays_) {
    if (array.name.ends_with(".grad")) continue;
    const int64_t elements = array.whole.elements();
    if (array.division.dim == 0 && array.division.blocks.size() == 1) {
      const int64_t row = elements / array.whole[0];
      const TensorDivision::Range rows = array.division.ranges(rank, count).front();
      pieces.push_back({array.group, array.name, array.dtype, array.whole, rows.begin * row, rows.end * row,
                        [this, &array] { return flat_part(store_.get(array.name), 0, -1); }});
      continue;
    }
    const Tensor whole = gather(array);
    const int64_t begin = elements / count * rank + std::min<int64_t>(rank, elements % count),
                  end = begin + elements / count + (rank < elements % count ? 1 : 0);
    const Tensor part = flat_part(whole, begin, end);
    if (end > begin) pieces.push_back({array.group, array.name, array.dtype, array.whole, begin, end, [part] { return part; }});
  }
  return pieces;
}

TensorSource TensorState::source(const std::string& name) {
  const auto place = static_cast<int64_t>(places_.at(name));
  const Array& array = arrays_[places_.at(name)];
  return {name, array.dtype, array.whole, [this, place] { return request(place); }};
}

}  // namespace galley
