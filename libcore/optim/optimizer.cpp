#include "libcore/optim/optimizer.h"

#include <tuple>

#include "libcore/ops/update.h"

namespace galley {
namespace {

void lr_option(OptionVisitor& v, double& lr) {
  v.option({.name = "lr", .doc = "learning rate; a schedule multiplies it", .min = 0, .required = true}, lr);
}
void weight_decay_option(OptionVisitor& v, std::string_view doc, double& weight_decay) {
  v.option({.name = "weight_decay", .doc = doc, .min = 0}, weight_decay);
}
void adam_options(OptionVisitor& v, std::vector<double>& betas, double& eps) {
  v.option({.name = "betas", .doc = "decay of the gradient's mean and of its mean square", .min = 0, .max = 1}, betas);
  v.option({.name = "eps", .doc = "added to the root of the mean square", .min = 0}, eps);
}

Value add_adam(const UpdateInputs& in, std::span<const Value> states, const std::vector<double>& betas, double eps, double weight_decay,
               bool decoupled) {
  GALLEY_CHECK(betas.size() == 2, "betas needs two numbers, but has ", betas.size());
  AdamUpdateAttrs attrs;
  attrs.beta1 = betas[0];
  attrs.beta2 = betas[1];
  attrs.eps = eps;
  attrs.weight_decay = weight_decay;
  attrs.decoupled = decoupled;
  return adam_update(in.param, in.grad, in.lr, in.step, states[0], states[1], in.grad_scale, attrs).front();
}

constexpr ComponentKind kOptimizers[] = {
    {"sgd", "stochastic gradient descent with momentum (torch.optim.SGD)", make_options<Sgd>},
    {"adam", "Adam, Kingma and Ba 2015 (torch.optim.Adam)", make_options<Adam>},
    {"adamw", "Adam with decoupled weight decay, Loshchilov and Hutter 2019 (torch.optim.AdamW)", make_options<AdamW>},
    {"rmsprop", "RMSprop, Tieleman and Hinton 2012 (torch.optim.RMSprop)", make_options<RmsProp>},
};

}  // namespace

void Sgd::options(OptionVisitor& v) {
  lr_option(v, lr);
  v.option({.name = "momentum", .doc = "momentum factor", .min = 0}, momentum);
  v.option({.name = "dampening", .doc = "dampening of the momentum"}, dampening);
  v.option({.name = "nesterov", .doc = "Nesterov momentum; needs a momentum and no dampening"}, nesterov);
  weight_decay_option(v, "L2 penalty, added to the gradient", weight_decay);
}
std::vector<std::string_view> Sgd::states() const {
  if (momentum == 0) return {};
  return {"momentum_buffer"};
}
Value Sgd::add_update(const UpdateInputs& in, std::span<const Value> states) const {
  SgdUpdateAttrs attrs;
  attrs.momentum = momentum;
  attrs.dampening = dampening;
  attrs.nesterov = nesterov;
  attrs.weight_decay = weight_decay;
  return sgd_update(in.param, in.grad, in.lr, in.step, states.empty() ? Value() : states[0], in.grad_scale, attrs).front();
}

void Adam::options(OptionVisitor& v) {
  lr_option(v, lr);
  adam_options(v, betas, eps);
  weight_decay_option(v, "L2 penalty, added to the gradient", weight_decay);
}
Value Adam::add_update(const UpdateInputs& in, std::span<const Value> states) const {
  return add_adam(in, states, betas, eps, weight_decay, false);
}

void AdamW::options(OptionVisitor& v) {
  lr_option(v, lr);
  adam_options(v, betas, eps);
  weight_decay_option(v, "fraction of lr by which parameters shrink per step", weight_decay);
}
Value AdamW::add_update(const UpdateInputs& in, std::span<const Value> states) const {
  return add_adam(in, states, betas, eps, weight_decay, true);
}

void RmsProp::options(OptionVisitor& v) {
  lr_option(v, lr);
  v.option({.name = "alpha", .doc = "smoothing of the mean square", .min = 0}, alpha);
  v.option({.name = "eps", .doc = "added to the root of the mean square", .min = 0}, eps);
  weight_decay_option(v, "L2 penalty, added to the gradient", weight_decay);
  v.option({.name = "momentum", .doc = "momentum factor", .min = 0}, momentum);
  v.option({.name = "centered", .doc = "divide by the standard deviation instead of the root of the mean square"}, centered);
  v.option({.name = "tf_eps", .doc = "adds eps inside the root, as TensorFlow does"}, tf_eps);
}
std::vector<std::string_view> RmsProp::states() const {
  std::vector<std::string_view> names{"square_avg"};
  if (centered) names.push_back("grad_avg");
  if (momentum != 0) names.push_back("momentum_buffer");
  return names;
}
Value RmsProp::add_update(const UpdateInputs& in, std::span<const Value> states) const {
  RmspropUpdateAttrs attrs;
  attrs.alpha = alpha;
  attrs.eps = eps;
  attrs.weight_decay = weight_decay;
  attrs.momentum = momentum;
  attrs.centered = centered;
  attrs.tf_eps = tf_eps;
  const Value grad_avg = centered ? states[1] : Value();
  const Value momentum_buffer = momentum != 0 ? states.back() : Value();
  return rmsprop_update(in.param, in.grad, in.lr, in.step, states[0], grad_avg, momentum_buffer, in.grad_scale, attrs).front();
}

ComponentKinds optimizers() { return kOptimizers; }

const ParameterGroup& ParameterGroups::of(const std::string& parameter) const {
  const auto found = group_of.find(parameter);
  return groups[found == group_of.end() ? 0 : found->second];
}

ParameterGroups resolve_groups(const Optimizer& optimizer, const std::map<std::string, ParameterOverride>& overrides) {
  using Settings = std::tuple<double, double, double>;
  const auto settings_of = [](Optimizer& o) { return Settings{o.lr, o.weight_decay, o.momentum_option() ? *o.momentum_option() : 0}; };
  const auto copy = [&] { return std::shared_ptr<Optimizer>(static_cast<Optimizer*>(optimizer.clone().release())); };
  ParameterGroups result;
  std::map<Settings, size_t> known;
  const auto group = [&](const std::shared_ptr<Optimizer>& options) {
    const auto [entry, is_new] = known.emplace(settings_of(*options), result.groups.size());
    if (is_new) result.groups.push_back({std::to_string(result.groups.size()), options});
    return entry->second;
  };
  group(copy());
  for (const auto& [parameter, own] : overrides) {
    const std::shared_ptr<Optimizer> options = copy();
    const auto apply = [&parameter = parameter](std::string_view option, const std::optional<Multiple>& multiple, double& value) {
      if (!multiple) return;
      value = multiple->of(value);
      GALLEY_CHECK(value >= 0, option, " of ", parameter, " must not be negative: ", value);
    };
    apply("lr", own.lr, options->lr);
    apply("weight_decay", own.weight_decay, options->weight_decay);
    GALLEY_CHECK(!own.momentum || options->momentum_option() != nullptr, "a group sets a momentum for ", parameter,
                 ", but this optimizer has no momentum");
    if (own.momentum) apply("momentum", own.momentum, *options->momentum_option());
    const size_t index = group(options);
    if (index != 0) result.group_of[parameter] = index;
  }
  return result;
}

}  // namespace galley
