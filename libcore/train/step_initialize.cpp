// TrainStep: the first values of parameters and states, on one rank or on ranks that hold parts of them.

#include <map>
#include <utility>

#include "libcore/base/philox.h"
#include "libcore/passes/tensor_parallel.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/host_array.h"
#include "libcore/train/offload.h"
#include "libcore/train/sharded_state.h"
#include "libcore/train/step.h"

namespace galley {

void TrainStep::initialize() {
  std::map<std::string, std::pair<size_t, size_t>> members;  // of units: unit and place in it
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t m = 0; m < units_[u].parameters.size(); ++m) members[units_[u].parameters[m]] = {u, m};
  }
  // One array at a time is whole; of it this rank keeps its range of a unit, its part of a matrix, or all.
  const auto wants = [&](const std::string& name) { return store().has(name) || members.count(name) > 0; };
  session_.initialize_each(parameters_, wants, [&](const ParameterSpec& spec, const Tensor& values) {
    const auto division = divisions_.find(spec.name);
    const Tensor own = division == divisions_.end() ? values : part_of(values, division->second, tensor_->rank(), tensor_->size());
    if (const auto member = members.find(spec.name); member != members.end()) {
      const GradientBucket& unit = units_[member->second.first];
      HostArray range(store(), unit.state);
      ShardedState::set_range(range.array(), unit, member->second.second, own, groups_.rank, groups_.ranks);
      range.changed();
    } else {
      store().set(spec.name, own);
    }
    if (offload_ != nullptr) offload_->used(values.bytes());
  });
  for (const StateSpec& state : states_) {
    initialize_state(state);
    if (offload_ != nullptr) offload_->used(state.type.bytes());
  }
}

void TrainStep::initialize_state(const StateSpec& state) {
  if (state.starts_as_copy) {
    engine_.store().set(state.name, engine_.store().get(state.of));
  } else if (state.random) {
    RandomStream random(static_cast<uint64_t>(recipe_.seed), state.name);
    Tensor values(state.type.dtype, state.type.shape);
    std::vector<double> numbers(static_cast<size_t>(values.elements()));
    for (double& number : numbers) number = random.normal();
    values.from_doubles(numbers);
    engine_.store().set(state.name, values);
  } else if (state.starts_at != 0) {
    Tensor values(state.type.dtype, state.type.shape);
    values.from_doubles(std::vector<double>(static_cast<size_t>(values.elements()), state.starts_at));
    engine_.store().set(state.name, values);
  }
}

}  // namespace galley
