#include "libcore/passes/fuse.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "libcore/ops/batch_norm_depthwise.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pointwise.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

std::optional<Activation> activation_of(const Node& node) {
  if (node.is("gelu") && node.attrs<GeluAttrs>().approximate != GeluApproximation::kNone) return std::nullopt;
  for (size_t i = 1; i < kActivationNames.size(); ++i) {
    if (node.is(kActivationNames[i])) return static_cast<Activation>(i);
  }
  return std::nullopt;
}

/// Merges a producer with the one node that reads it, as long as a rule agrees. The merged node stands at the reader's place, so all
/// inputs exist there.
class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), nodes_(graph.nodes()), producers_(graph.producers()), users_(graph.users()), gone_(nodes_.size()) {
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
  }

  Node& node(size_t n) { return nodes_[n]; }
  /// For an output that a merged node has beside those of the nodes that it stands for.
  ValueId new_value(TensorType type) {
    producers_.push_back(-1);
    users_.emplace_back();
    return graph_.new_value(std::move(type));
  }
  size_t size() const { return nodes_.size(); }
  /// The nodes that read a value.
  const std::vector<int>& users(ValueId id) const { return users_[static_cast<size_t>(id)]; }
  bool is_output(ValueId id) const { return outputs_.count(id) > 0; }
  bool gone(size_t n) const { return gone_[n]; }

  /// The node that makes a value, or -1.
  int producer(ValueId id) const { return id == kNoValue ? -1 : producers_[static_cast<size_t>(id)]; }
  /// Why the value cannot vanish into its reader, or "".
  std::string reason_against(ValueId id) const {
    if (outputs_.count(id) > 0) return "an output of the graph lies between";
    const size_t readers = users_[static_cast<size_t>(id)].size();
    return readers == 1 ? "" : cat("the value between has ", readers, " readers");
  }

  /// `merged` takes the place of `reader`, and output 0 of `reader`; `inner` goes.
  void merge(size_t reader, size_t inner, Node merged, std::string what) {
    merged.outputs[0] = nodes_[reader].outputs[0];
    absorb(reader, inner);
    for (ValueId id : merged.outputs) producers_[static_cast<size_t>(id)] = static_cast<int>(reader);
    report.done.push_back(cat(merged.path, ": ", what));
    nodes_[reader] = std::move(merged);
  }
  /// `merged` takes the place of `inner` and makes output 0 of `reader`, which goes.
  void merge_into(size_t inner, size_t reader, Node merged, std::string what) {
    merged.outputs[0] = nodes_[reader].outputs[0];
    absorb(inner, reader);
    producers_[static_cast<size_t>(merged.outputs[0])] = static_cast<int>(inner);
    report.done.push_back(cat(merged.path, ": ", what));
    nodes_[inner] = std::move(merged);
  }
  /// What `inner` read, `reader` reads: so it goes.
  void absorb(size_t reader, size_t inner) {
    for (ValueId id : nodes_[inner].inputs) rename_user(id, inner, reader);
    gone_[inner] = true;
  }
  /// The node goes: what it made, one that merge has put in makes.
  void remove(size_t n) { gone_[n] = true; }

  /// The nodes that are left; readers of values that are made later than before follow them.
  void finish() {
    std::deque<Node> kept;
    std::vector<bool> made(graph_.value_count());
    for (ValueId id : graph_.inputs()) made[static_cast<size_t>(id)] = true;
    std::deque<Node> waiting;
    const auto ready = [&](const Node& node) {
      for (ValueId id : node.inputs) {
        if (id != kNoValue && !made[static_cast<size_t>(id)]) return false;
      }
      return true;
    };
    const auto take = [&](Node node) {
      for (ValueId id : node.outputs) made[static_cast<size_t>(id)] = true;
      kept.push_back(std::move(node));
    };
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (gone_[n]) continue;
      if (!ready(nodes_[n])) {
        waiting.push_back(nodes_[n]);
        continue;
      }
      take(nodes_[n]);
      for (bool moved = true; moved;) {
        moved = false;
        for (auto node = waiting.begin(); node != waiting.end(); ++node) {
          if (!ready(*node)) continue;
          take(std::move(*node));
          waiting.erase(node);
          moved = true;
          break;
        }
      }
    }
    GALLEY_ASSERT(waiting.empty(), "fusion left a cycle");
    graph_.set_nodes(std::move(kept));
  }

  PassReport report;

 private:
  void rename_user(ValueId id, size_t from, size_t to) {
    if (id == kNoValue) return;
    for (int& user : users_[static_cast<size_t>(id)]) {
      if (user == static_cast<int>(from)) user = static_cast<int>(to);
    }
  }

  Graph& graph_;
  std::deque<Node> nodes_;
  std::vector<int> producers_;
  std::vector<std::vector<int>> users_;
  std::vector<bool> gone_;
  std::set<ValueId> outputs_;
};

/// Both sides of an add have the sum's shape: a residual, not a broadcast.
bool adds_alike(const Graph& graph, const Node& node) {
  return graph.type(node.inputs[0]).shape == graph.type(node.outputs[0]).shape && graph.type(node.inputs[1]).shape == graph.type(node.outputs[0]).shape;
}

/// Of an add's two sides, the one made by an operator of that name that takes a residual; the later made where both are. -1: none.
int side_to_take(Fuser& fuser, const Node& sum, std::string_view op, Activation (*activation)(const Node&), std::string& reason) {
  int best = -1;
  for (size_t side : {0u, 1u}) {
    const int n = fuser.producer(sum.inputs[side]);
    if (n < 0) continue;
    const Node& producer = fuser.node(static_cast<size_t>(n));
    if (!producer.is(op) || producer.outputs[0] != sum.inputs[side]) continue;
    std::string against = fuser.reason_against(sum.inputs[side]);
    if (sum.inputs[0] == sum.inputs[1]) against = "both sides of the add are the same value";
    if (against.empty() && (activation(producer) != Activation::kNone || producer.input(3) != kNoValue)) against = "an activation or residual is there already";
    if (!against.empty()) {
      reason = against;
    } else if (best < 0 || n > fuser.producer(sum.inputs[static_cast<size_t>(best)])) {
      best = static_cast<int>(side);
    }
  }
  return best;
}

/// A copy with other attributes.
template <class Attrs>
Node with_activation(const Node& node, Activation activation) {
  auto attrs = std::make_shared<Attrs>(node.attrs<Attrs>());
  attrs->activation = activation;
  Node copy = node;
  copy.attributes = std::move(attrs);
  return copy;
}

Node with_residual(const Node& node, ValueId residual) {
  Node copy = node;
  copy.inputs.resize(4, kNoValue);
  copy.inputs[3] = residual;
  return copy;
}

/// The depthwise convolution `node` of what a batch norm gives, as one operator; nothing where it is another convolution.
std::optional<Node> with_batch_norm(const Graph& graph, const Node& node, const Node& norm) {
  const auto& window = node.attrs<Conv2dAttrs>();
  const Shape &x = graph.type(node.inputs[0]).shape, &weight = graph.type(node.inputs[1]).shape;
  if (window.groups == 1 || window.groups != x[1] || weight[0] != x[1] || pair(window.dilation) != std::array<int64_t, 2>{1, 1}) return std::nullopt;
  if (node.input(2) != kNoValue || node.input(3) != kNoValue || norm.input(3) != kNoValue || window.activation != Activation::kNone) return std::nullopt;
  auto attrs = std::make_shared<BatchNormDepthwiseAttrs>();
  attrs->eps = norm.attrs<BatchNormAttrs>().eps;
  attrs->activation = norm.attrs<BatchNormAttrs>().activation;
  attrs->stride = window.stride;
  attrs->padding = window.padding;
  Node merged = node;
  merged.op = &batch_norm_depthwise_op();
  merged.attributes = std::move(attrs);
  merged.inputs = {norm.inputs[0], node.inputs[1], norm.input(1), norm.input(2)};
  merged.outputs = {node.outputs[0], norm.outputs[1], norm.outputs[2]};
  return merged;
}

bool is_pointwise(const Graph& graph, const Node& weights) {
  const auto& window = weights.attrs<Conv2dBackwardWeightsAttrs>();
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  return pair(window.kernel_size) == kOne && pair(window.stride) == kOne && pair(window.padding) == kZero && window.groups == 1 && graph.type(weights.inputs[0]).shape.rank() == 4;
}

/// `depthwise`, a batch_norm_depthwise, with the convolution that gives its input; nothing where that is not a plain 1x1 one.
std::optional<Node> with_convolution(const Graph& graph, const Node& depthwise, const Node& convolution) {
  const auto& window = convolution.attrs<Conv2dAttrs>();
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  const Shape& weight = graph.type(convolution.inputs[1]).shape;
  if (weight[2] * weight[3] != 1 || pair(window.stride) != kOne || pair(window.padding) != kZero || window.groups != 1) return std::nullopt;
  if (convolution.input(2) != kNoValue || convolution.input(3) != kNoValue || window.activation != Activation::kNone) return std::nullopt;
  Node merged = depthwise;
  merged.op = &pointwise_batch_norm_depthwise_op();
  merged.inputs = {convolution.inputs[0], convolution.inputs[1], depthwise.inputs[1], depthwise.input(2), depthwise.input(3)};
  return merged;
}

/// The two gradients of a 1x1 convolution and that of the batch norm behind it, or of a batch_norm_depthwise, as one operator.
Node with_gradients(const Node& norm, const Node& data, const Node& weights) {
  Node merged = norm;
  merged.path = data.path;
  merged.inputs.resize(7, kNoValue);
  if (norm.is("batch_norm_backward")) {
    merged.op = &pointwise_batch_norm_backward_op();
  } else {
    merged.op = &pointwise_batch_norm_depthwise_backward_op();
    merged.inputs.erase(merged.inputs.begin() + 2);  // what the convolution gave: made again
  }
  merged.inputs.insert(merged.inputs.end(), {weights.inputs[0], data.inputs[1]});
  merged.outputs = {data.outputs[0], weights.outputs[0]};
  merged.outputs.insert(merged.outputs.end(), norm.outputs.begin() + 1, norm.outputs.end());
  return merged;
}

Activation batch_norm_activation(const Node& node) { return node.attrs<BatchNormAttrs>().activation; }
Activation conv_activation(const Node& node) { return node.attrs<Conv2dAttrs>().activation; }

}  // namespace

PassReport fuse_training(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel) {
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    if (has_kernel && fuser.node(n).is("conv2d")) {
      const int norm = fuser.producer(fuser.node(n).inputs[0]);
      if (norm < 0 || !fuser.node(static_cast<size_t>(norm)).is("batch_norm")) continue;
      const std::optional<Node> merged = with_batch_norm(graph, fuser.node(n), fuser.node(static_cast<size_t>(norm)));
      if (!merged) continue;
      const std::string against = fuser.reason_against(fuser.node(n).inputs[0]);
      if (!against.empty() || !has_kernel(graph, *merged)) {
        fuser.report.declined.push_back(cat(merged->path, ": batch_norm + conv2d: ", against.empty() ? "no kernel takes it" : against));
      } else {
        fuser.merge(n, static_cast<size_t>(norm), *merged, "batch_norm + conv2d");
      }
      continue;
    }
    if (fuser.node(n).is("add") && adds_alike(graph, fuser.node(n))) {
      const Node sum = fuser.node(n);
      std::string reason;
      const int side = side_to_take(fuser, sum, "batch_norm", batch_norm_activation, reason);
      if (side >= 0) {
        const auto norm = static_cast<size_t>(fuser.producer(sum.inputs[static_cast<size_t>(side)]));
        fuser.merge(n, norm, with_residual(fuser.node(norm), sum.inputs[static_cast<size_t>(1 - side)]), "batch_norm + add");
      } else if (!reason.empty()) {
        fuser.report.declined.push_back(cat(sum.path, ": batch_norm + add: ", reason));
      }
      continue;
    }
    const std::optional<Activation> activation = activation_of(fuser.node(n));
    if (!activation || !batch_norm_takes(*activation)) continue;
    const ValueId x = fuser.node(n).inputs[0];
    const int producer = fuser.producer(x);
    if (producer < 0) continue;
    auto inner = static_cast<size_t>(producer);
    const std::string against = fuser.reason_against(x);
    if (fuser.node(inner).is("batch_norm")) {
      if (against.empty() && batch_norm_activation(fuser.node(inner)) == Activation::kNone && (*activation == Activation::kRelu || fuser.node(inner).input(3) == kNoValue)) {
        fuser.merge(n, inner, with_activation<BatchNormAttrs>(fuser.node(inner), *activation), cat("batch_norm + ", fuser.node(n).op->name));
      } else {
        fuser.report.declined.push_back(cat(fuser.node(inner).path, ": batch_norm + ", fuser.node(n).op->name, ": ", against.empty() ? "an activation is there already" : against));
      }
    }
  }
  fuser.finish();
  return std::move(fuser.report);
}

namespace {

/// fuse_pointwise's work.
class PointwiseFuser {
 public:
  PointwiseFuser(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel) : graph_(graph), has_kernel_(has_kernel), fuser_(graph) {}

  PassReport run() {
    for (size_t n = 0; n < fuser_.size(); ++n) {
      if (fuser_.gone(n)) continue;
      const Node& node = fuser_.node(n);
      if (node.is("batch_norm_backward")) {
        if (const std::optional<Gradients> gradients = gradients_of(n)) take_or_decline(n, *gradients);
      } else if (node.is("batch_norm_depthwise") || node.is("batch_norm_depthwise_backward")) {
        take_convolution(node.inputs[node.is("batch_norm_depthwise") ? 0 : 2]);
      }
    }
    fuser_.finish();
    return std::move(fuser_.report);
  }

 private:
  /// The node that stands for the gradients of a norm and of the 1x1 convolution before it, and where those of the convolution are.
  struct Gradients {
    Node merged;
    size_t data, weights;
  };

  /// Nothing where the gradient between has other readers.
  std::optional<Gradients> gradients_of(size_t n) {
    const Node& norm = fuser_.node(n);
    if (norm.is("batch_norm_backward") && norm.input(7) != kNoValue) return std::nullopt;  // gated
    const ValueId between = norm.outputs[0];
    int data = -1, weights = -1;
    for (int user : fuser_.users(between)) {
      const Node& reader = fuser_.node(static_cast<size_t>(user));
      if (reader.is("conv2d_backward_data") && reader.inputs[0] == between) data = user;
      if (reader.is("conv2d_backward_weights") && reader.inputs[1] == between) weights = user;
    }
    if (data < 0 || weights < 0 || fuser_.users(between).size() != 2 || fuser_.is_output(between)) return std::nullopt;
    if (!is_pointwise(graph_, fuser_.node(static_cast<size_t>(weights)))) return std::nullopt;
    return Gradients{with_gradients(norm, fuser_.node(static_cast<size_t>(data)), fuser_.node(static_cast<size_t>(weights))), static_cast<size_t>(data), static_cast<size_t>(weights)};
  }

  static std::string what_of(const Node& norm) { return cat(norm.op->name, " + conv2d_backward_data + conv2d_backward_weights"); }
  void take(size_t n, const Gradients& gradients) {
    fuser_.remove(gradients.weights);
    fuser_.merge(gradients.data, n, gradients.merged, what_of(fuser_.node(n)));
  }
  void take_or_decline(size_t n, const Gradients& gradients) {
    if (has_kernel_(graph_, gradients.merged)) {
      take(n, gradients);
    } else {
      fuser_.report.declined.push_back(cat(gradients.merged.path, ": ", what_of(fuser_.node(n)), ": no kernel takes it"));
    }
  }

  /// The convolution that gives `between` goes into all that read it, a batch_norm_depthwise and gradients of one, or stays.
  void take_convolution(ValueId between) {
    const int convolution = fuser_.producer(between);
    if (convolution < 0 || !fuser_.node(static_cast<size_t>(convolution)).is("conv2d") || !seen_.insert(between).second || fuser_.is_output(between)) return;
    const Node made = fuser_.node(static_cast<size_t>(convolution));
    std::vector<std::pair<size_t, Node>> forward;
    std::vector<std::pair<size_t, Gradients>> backward;
    for (int user : fuser_.users(between)) {
      const auto n = static_cast<size_t>(user);
      const Node& reader = fuser_.node(n);
      if (reader.is("batch_norm_depthwise") && reader.inputs[0] == between) {
        std::optional<Node> merged = with_convolution(graph_, reader, made);
        if (!merged) return;
        forward.emplace_back(n, std::move(*merged));
      } else if (reader.is("batch_norm_depthwise_backward") && reader.inputs[2] == between) {
        std::optional<Gradients> gradients = gradients_of(n);
        if (!gradients) return;
        backward.emplace_back(n, std::move(*gradients));
      } else {
        return;
      }
    }
    // Gradients read the moments of x that the other direction has summed.
    for (size_t i = 0; i < forward.size(); ++i) {
      Node& merged = forward[i].second;
      merged.outputs.push_back(fuser_.new_value(moments_type(graph_.type(merged.inputs[0]))));
      if (i > 0) continue;
      for (auto& [n, gradients] : backward) {
        gradients.merged.inputs.resize(9, kNoValue);
        gradients.merged.inputs.push_back(merged.outputs[3]);
      }
    }
    const auto missing = [&](const Node& merged) { return !has_kernel_(graph_, merged); };
    if (std::any_of(forward.begin(), forward.end(), [&](const auto& one) { return missing(one.second); }) ||
        std::any_of(backward.begin(), backward.end(), [&](const auto& one) { return missing(one.second.merged); })) {
      fuser_.report.declined.push_back(cat(made.path, ": conv2d + batch_norm_depthwise: no kernel takes it"));
      return;
    }
    for (auto& [n, merged] : forward) fuser_.merge(n, static_cast<size_t>(convolution), std::move(merged), "conv2d + batch_norm_depthwise");
    for (const auto& [n, gradients] : backward) take(n, gradients);
    fuser_.remove(static_cast<size_t>(convolution));
  }

  Graph& graph_;
  const std::function<bool(const Graph&, const Node&)>& has_kernel_;
  Fuser fuser_;
  std::set<ValueId> seen_;
};

}  // namespace

namespace {

/// How the gradient of a gated array comes: grad gate + the gradient of its mean, spread over the pixels.
struct Gated {
  ValueId grad, gate, spread;
  std::array<size_t, 3> nodes;  // that make it
};

/// Is this value an average over the pixels of each channel, or one such for each?
bool is_one_each(const Graph& graph, ValueId id, const Shape& image) {
  const Shape& shape = graph.type(id).shape;
  return shape.rank() == 4 && image.rank() == 4 && shape == Shape{image[0], image[1], 1, 1};
}

std::optional<Gated> gated(const Graph& graph, Fuser& fuser, ValueId gradient) {
  const auto maker = [&](ValueId id, std::string_view op) -> std::optional<size_t> {
    const int n = fuser.producer(id);
    if (n < 0 || fuser.gone(static_cast<size_t>(n)) || !fuser.node(static_cast<size_t>(n)).is(op) || !fuser.reason_against(id).empty()) return std::nullopt;
    return static_cast<size_t>(n);
  };
  const std::optional<size_t> sum = maker(gradient, "add");
  if (!sum || !adds_alike(graph, fuser.node(*sum))) return std::nullopt;
  for (size_t side : {0u, 1u}) {
    const std::vector<ValueId>& sides = fuser.node(*sum).inputs;
    const std::optional<size_t> product = maker(sides[side], "mul"), mean = maker(sides[1 - side], "adaptive_avg_pool2d_backward");
    if (!product || !mean) continue;
    const std::vector<ValueId>& factors = fuser.node(*product).inputs;
    const ValueId spread = fuser.node(*mean).inputs[0];
    const Shape& image = graph.type(gradient).shape;
    for (size_t i : {0u, 1u}) {
      if (is_one_each(graph, factors[i], image) && graph.type(factors[1 - i]).shape == image && is_one_each(graph, spread, image)) {
        return Gated{factors[1 - i], factors[i], spread, {*sum, *product, *mean}};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

PassReport fuse_gates(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel) {
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    Node merged = fuser.node(n);
    if (merged.is("sum_to")) {
      const int product = fuser.producer(merged.inputs[0]);
      if (product < 0 || !fuser.node(static_cast<size_t>(product)).is("mul") || !fuser.reason_against(merged.inputs[0]).empty()) continue;
      if (!adds_alike(graph, fuser.node(static_cast<size_t>(product)))) continue;
      merged.op = &sum_products_op();
      merged.inputs = fuser.node(static_cast<size_t>(product)).inputs;
      if (has_kernel(graph, merged)) fuser.merge(n, static_cast<size_t>(product), merged, "mul + sum_to");
    } else if (merged.is("batch_norm_backward") && merged.input(6) == kNoValue && merged.input(7) == kNoValue && !merged.attrs<BatchNormBackwardAttrs>().residual) {
      const std::optional<Gated> gradient = gated(graph, fuser, merged.inputs[0]);
      if (!gradient) continue;
      merged.inputs.resize(9, kNoValue);
      merged.inputs[0] = gradient->grad;
      merged.inputs[7] = gradient->gate;
      merged.inputs[8] = gradient->spread;
      if (!has_kernel(graph, merged)) continue;
      fuser.merge(n, gradient->nodes[0], merged, "batch_norm_backward + add + mul + adaptive_avg_pool2d_backward");
      for (size_t inner : {gradient->nodes[1], gradient->nodes[2]}) fuser.absorb(n, inner);
    }
  }
  fuser.finish();
  return std::move(fuser.report);
}

PassReport fuse_pointwise(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel) { return PointwiseFuser(graph, has_kernel).run(); }

PassReport fuse_gradient_sums(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel) {
  Fuser fuser(graph);
  const auto residual_input = [](const Node& node) { return node.is("conv2d_backward_data") ? 2u : node.is("pointwise_batch_norm_depthwise_backward") ? 8u : 0u; };
  for (size_t n = 0; n < fuser.size(); ++n) {
    const Node sum = fuser.node(n);
    if (!sum.is("add") || sum.phase != Phase::kBackward || !adds_alike(graph, sum) || sum.inputs[0] == sum.inputs[1]) continue;
    // The later of two takes the other, which is there then; where it stands: its weight may be updated before the sum.
    const size_t side = fuser.producer(sum.inputs[0]) < fuser.producer(sum.inputs[1]) ? 1 : 0;
    const ValueId gradient = sum.inputs[side];
    const int made = fuser.producer(gradient);
    if (made < 0) continue;
    Node merged = fuser.node(static_cast<size_t>(made));
    const size_t at = residual_input(merged);
    if (at == 0 || merged.outputs[0] != gradient || merged.input(at) != kNoValue || !fuser.reason_against(gradient).empty()) continue;
    merged.inputs.resize(std::max(merged.inputs.size(), at + 1), kNoValue);
    merged.inputs[at] = sum.inputs[1 - side];
    if (!has_kernel(graph, merged)) continue;
    const std::string what = cat(merged.op->name, " + add");
    fuser.merge_into(static_cast<size_t>(made), n, std::move(merged), what);
  }
  fuser.finish();
  return std::move(fuser.report);
}

PassReport fuse_inference(Graph& graph) {
  Fuser fuser(graph);
  for (size_t n = 0; n < fuser.size(); ++n) {
    const Node node = fuser.node(n);
    if (node.is("add") && adds_alike(graph, node)) {
      std::string reason;
      const int side = side_to_take(fuser, node, "conv2d", conv_activation, reason);
      if (side >= 0) {
        const auto conv = static_cast<size_t>(fuser.producer(node.inputs[static_cast<size_t>(side)]));
        fuser.merge(n, conv, with_residual(fuser.node(conv), node.inputs[static_cast<size_t>(1 - side)]), "conv2d + add");
      } else if (!reason.empty()) {
        fuser.report.declined.push_back(cat(node.path, ": conv2d + add: ", reason));
      }
      continue;
    }
    const std::optional<Activation> activation = activation_of(node);
    const int producer = activation ? fuser.producer(node.inputs[0]) : -1;
    if (producer < 0) continue;
    const auto inner = static_cast<size_t>(producer);
    const Node& made = fuser.node(inner);
    const bool conv = made.is("conv2d"), dense = made.is("linear"), norm = made.is("batch_norm_inference");
    if (!conv && !dense && !norm) continue;
    const Activation present = conv ? conv_activation(made) : dense ? made.attrs<LinearAttrs>().activation : made.attrs<BatchNormInferenceAttrs>().activation;
    std::string against = fuser.reason_against(node.inputs[0]);
    if (against.empty() && present != Activation::kNone) against = "an activation is there already";
    if (!against.empty()) {
      fuser.report.declined.push_back(cat(made.path, ": ", made.op->name, " + ", node.op->name, ": ", against));
      continue;
    }
    const std::string what = cat(made.op->name, " + ", node.op->name);
    fuser.merge(n, inner,
                conv    ? with_activation<Conv2dAttrs>(made, *activation)
                : dense ? with_activation<LinearAttrs>(made, *activation)
                        : with_activation<BatchNormInferenceAttrs>(made, *activation),
                what);
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
