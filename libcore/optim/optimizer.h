#pragma once
// Optimizers as option structs with torch.optim's parameter names and defaults, and groups of parameters with their own settings. An
// optimizer adds one update node per parameter (ops/update.h) to the graph.

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

/// Inputs of an update node. grad_scale may be absent.
struct UpdateInputs {
  Value param, grad, lr, step, grad_scale;
};

/// Base of the option structs of all optimizers.
struct Optimizer : Options {
  double lr = 1e-3;         // learning rate
  double weight_decay = 0;  // as each optimizer defines it

  /// Name suffixes of a parameter's states, e.g. "momentum_buffer". Each state has the parameter's type and starts at zero.
  virtual std::vector<std::string_view> states() const = 0;
  /// Appends the update node of a parameter; `states` are in the order of states(). Returns the new value of the parameter.
  virtual Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const = 0;
  /// The momentum option, which a parameter group may override; nullptr if the optimizer has none.
  virtual double* momentum_option() { return nullptr; }
};

/// Implements clone() for the option struct Self.
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

/// torch.optim.AdamW: weight decay is decoupled from the gradient, 0.01 by default.
struct AdamW : OptimizerOf<AdamW> {
  AdamW() { weight_decay = 1e-2; }
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
};

/// torch.optim.RMSprop: eps is added to the square root or, with tf_eps, inside it as in TensorFlow.
struct RmsProp : OptimizerOf<RmsProp> {
  RmsProp() { lr = 1e-2; }
  double alpha = 0.99, eps = 1e-8, momentum = 0;
  bool centered = false, tf_eps = false;
  void options(OptionVisitor& v) override;
  std::vector<std::string_view> states() const override;
  Value add_update(const UpdateInputs& inputs, std::span<const Value> states) const override;
  double* momentum_option() override { return &momentum; }
};

/// The optimizers that a recipe may name: sgd, adam, adamw, rmsprop.
ComponentKinds optimizers();

/// Settings of a parameter that differ from the optimizer's. The caller matches selectors and fills it.
struct ParameterOverride {
  std::optional<Multiple> lr, weight_decay, momentum;
};

/// Parameters that share all settings, and the learning-rate input "lr.<name>".
struct ParameterGroup {
  std::string name;
  std::shared_ptr<const Optimizer> optimizer;  // with the group's lr, weight decay and momentum
};

/// All groups. The first one has the optimizer's own settings and holds the parameters that are not in `group_of`.
struct ParameterGroups {
  std::vector<ParameterGroup> groups;
  std::map<std::string, size_t> group_of;
  /// The group of a parameter.
  const ParameterGroup& of(const std::string& parameter) const;
};

/// Makes one group per distinct setting: "0" for the optimizer's own, then "1", "2", ... in the order of parameter names. Throws Error if a
/// parameter sets a momentum that the optimizer does not have, or a negative value.
ParameterGroups resolve_groups(const Optimizer& optimizer, const std::map<std::string, ParameterOverride>& overrides = {});

}  // namespace galley
