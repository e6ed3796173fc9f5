#pragma once
// Optimizers as option structs, with torch.optim's parameter names and defaults, and groups of parameters with settings of their
// own. What an optimizer does is a node for each parameter (ops/update.h).

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/graph/graph.h"

namespace galley {

/// What one update node reads: grad_scale may be absent.
struct UpdateInputs {
  Value param, grad, lr, step, grad_scale;
};

/// Base of all optimizers.
struct Optimizer : Options {
  double lr = 1e-3;
  double weight_decay = 0;

  /// Suffixes of the states a parameter has: "momentum_buffer". Each has the parameter's type and starts at zero.
  virtual std::vector<std::string_view> states() const = 0;
  /// Appends the update; `states` in the order of states(). Returns the new parameter.
  virtual Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const = 0;
  /// The momentum that a group may set, nullptr where the algorithm has none of that name.
  virtual double* momentum_option() { return nullptr; }
};

template <class Self>
struct OptimizerOf : Optimizer {
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// torch.optim.SGD.
struct Sgd : OptimizerOf<Sgd> {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override;
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
  double* momentum_option() override { return &momentum; }
};

/// torch.optim.Adam: weight decay is added to the gradient.
struct Adam : OptimizerOf<Adam> {
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
};

/// torch.optim.AdamW: weight decay is decoupled, 0.01 by default.
struct AdamW : OptimizerOf<AdamW> {
  AdamW() { weight_decay = 1e-2; }
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
};

/// torch.optim.RMSprop: eps outside the root, or, with tf_eps, inside it as TensorFlow has it.
struct RmsProp : OptimizerOf<RmsProp> {
  RmsProp() { lr = 1e-2; }
  double alpha = 0.99, eps = 1e-8, momentum = 0;
  bool centered = false, tf_eps = false;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override;
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
  double* momentum_option() override { return &momentum; }
};

/// sgd, adam, adamw, rmsprop: structs derived from Optimizer.
ComponentKinds optimizers();

/// What a parameter has for itself; empty: the optimizer's. Filled by the caller, who matches selectors.
struct ParameterOverride {
  std::optional<Multiple> lr, weight_decay, momentum;
};

/// Parameters that share all settings, and so a learning-rate input "lr.<name>".
struct ParameterGroup {
  std::string name;
  std::shared_ptr<const Optimizer> optimizer;  // with the group's lr, weight decay and momentum
};

/// Groups, the first with the optimizer's own settings; parameters that `group_of` does not name belong to it.
struct ParameterGroups {
  std::vector<ParameterGroup> groups;
  std::map<std::string, size_t> group_of;
  const ParameterGroup& of(const std::string& parameter) const;
};

/// Makes one group for each distinct setting: "0" for the optimizer's own, then "1", "2", ... in order of parameter name.
/// Throws where a parameter sets a momentum and the algorithm has none, or a value below zero.
ParameterGroups resolve_groups(const Optimizer& optimizer, const std::map<std::string, ParameterOverride>& overrides = {});

}  // namespace galley
