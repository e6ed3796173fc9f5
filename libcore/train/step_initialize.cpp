// TrainStep: the first values of parameters and states, on one rank or on ranks that hold parts of them.

#include "libcore/base/philox.h"
#include "libcore/passes/tensor_parallel.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/host_array.h"
#include "libcore/train/sharded_state.h"
#include "libcore/train/step.h"

namespace galley {

/// Sets this rank's ranges. Without files of weights, one unit at a time is whole.
void TrainStep::initialize_units() {
  const auto initialize = [&](size_t begin, size_t end) {
    ParameterStore whole;
    std::map<std::string, const ParameterSpec*> specs;
    for (const ParameterSpec& spec : parameters_) specs[spec.name] = &spec;
    for (size_t u = begin; u < end; ++u) {
      for (const std::string& name : units_[u].parameters) whole.declare(name, specs.at(name)->type, ValueRole::kParameter);
    }
    session_.initialize(parameters_, whole);
    for (size_t u = begin; u < end; ++u) {
      const GradientBucket& unit = units_[u];
      HostArray range(store(), unit.state);
      for (size_t m = 0; m < unit.parameters.size(); ++m)
        ShardedState::set_range(range.array(), unit, m, whole.get(unit.parameters[m]), groups_.rank, groups_.ranks);
      range.changed();
    }
  };
  const bool loads = !recipe_.weights.load.empty() || recipe_.lora;
  for (size_t u = 0; u < units_.size(); u += loads ? units_.size() : 1) initialize(u, loads ? units_.size() : u + 1);
}

/// Sets this rank's parts. Without files of weights, one parameter at a time is whole.
void TrainStep::initialize_parts() {
  const bool loads = !recipe_.weights.load.empty();
  ParameterStore all;
  if (loads) {
    for (const ParameterSpec& spec : parameters_) all.declare(spec.name, spec.type, spec.role);
    session_.initialize(parameters_, all);
  }
  for (const ParameterSpec& spec : parameters_) {
    if (!store().has(spec.name)) continue;
    ParameterStore one;
    if (!loads) {
      one.declare(spec.name, spec.type, spec.role);
      session_.initialize({spec}, one);
    }
    const Tensor whole = (loads ? all : one).get(spec.name);
    const auto division = divisions_.find(spec.name);
    store().set(spec.name, division == divisions_.end() ? whole : part_of(whole, division->second, tensor_->rank(), tensor_->size()));
  }
}

void TrainStep::initialize() {
  if (tensor_ != nullptr) {
    initialize_parts();
  } else {
    session_.initialize(parameters_, engine_.store());
  }
  if (gathers()) initialize_units();
  for (const StateSpec& state : states_) initialize_state(state);
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
