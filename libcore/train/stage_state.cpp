#include "libcore/train/stage_state.h"

#include <algorithm>
#include <cstring>

#include "libcore/base/error.h"

namespace galley {

StageState::StageState(Communicator& ranks, ParameterStore& store, std::vector<Entry> entries)
    : WholeArrays(ranks), ranks_(ranks), store_(store), entries_(std::move(entries)) {}

bool StageState::has(const std::string& name) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
}

Tensor StageState::give(int64_t entry) {
  const Entry& of = entries_[static_cast<size_t>(entry)];
  Tensor values(of.type.dtype, of.type.shape);
  if (of.root == ranks_.rank()) std::memcpy(values.data(), store_.view(of.name).data(), static_cast<size_t>(values.bytes()));
  ranks_.broadcast("state", values.data(), values.bytes(), DType::kI8, of.root);
  return values;
}

TensorSource StageState::source(const std::string& name) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  GALLEY_ASSERT(found != entries_.end(), name);
  const int64_t place = found - entries_.begin();
  return {name, found->type.dtype, found->type.shape, [this, place] { return request(place); }};
}

}  // namespace galley
