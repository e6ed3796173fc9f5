#include "tests/ops/harness.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/backends/ref/reference.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/registry.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

bool near_a_kink(double value, const Fill& fill) {
  return std::any_of(fill.kinks.begin(), fill.kinks.end(), [&](double kink) { return std::abs(value - kink) < fill.margin; });
}

/// Applies the gradient rule of the node under test to random cotangents; adds the gradients of a value that is read twice.
void add_gradient(const OpCase& c, const CaseInputs& inputs, CaseGraph& made) {
  Graph& graph = made.graph;
  const Node node = graph.nodes()[made.node];
  RandomStream random(77, c.name);
  std::vector<Value> output_gradients;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const TensorType type = graph.type(node.outputs[i]);
    const bool counts = is_floating(type.dtype) && (c.differentiable_outputs < 0 || static_cast<int>(i) < c.differentiable_outputs);
    output_gradients.emplace_back();
    if (!counts) continue;
    output_gradients.back() = graph.add_input(cat("cotangent", i), type, ValueRole::kInput);
    RefArray cotangent{type.shape, {}};
    for (int64_t j = 0; j < type.elements(); ++j) cotangent.v.push_back(random.uniform(-1, 1));
    made.feeds[cat("cotangent", i)] = std::move(cotangent);
    made.cotangents.emplace_back(node.outputs[i], output_gradients.back().id());
  }
  if (made.cotangents.empty()) return;  // all outputs are integers
  std::vector<bool> wanted;
  for (ValueId id : node.inputs) wanted.push_back(id != kNoValue && is_floating(graph.type(id).dtype) && !inputs.is_fixed(id));
  graph.set_phase(Phase::kBackward);
  GradientBuilder builder(graph, node, output_gradients, wanted);
  node.op->gradient(builder);
  std::map<ValueId, Value> total;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!wanted[i]) continue;
    Value& sum = total[node.inputs[i]];
    const Value part = builder.result()[i];
    if (!part) continue;
    sum = sum ? galley::add(sum, part) : part;
  }
  made.gradients.assign(total.begin(), total.end());
}

/// The objective: the sum of outputs times cotangents, by the reference in double.
double objective(const CaseGraph& made, const Interpreter& forward, const std::map<std::string, RefArray>& feeds) {
  const std::map<ValueId, RefArray> values = forward.run(feeds);
  double sum = 0;
  for (const auto& [output, cotangent] : made.cotangents) {
    const RefArray& weight = made.feeds.at(made.graph.value(cotangent).name);
    for (int64_t i = 0; i < weight.shape.elements(); ++i) sum += weight[i] * values.at(output)[i];
  }
  return sum;
}

}  // namespace

Value CaseInputs::put(DType dtype, const Shape& shape, ValueRole role, std::vector<double> values) {
  GALLEY_ASSERT(static_cast<int64_t>(values.size()) == shape.elements());
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  const std::string name = cat("in", declared_.size());
  declared_.push_back(graph_.add_input(name, type, role));
  feeds_[name] = RefArray{shape, std::move(values)};
  return declared_.back();
}

Value CaseInputs::add(DType dtype, const Shape& shape, ValueRole role, const Fill& fill) {
  const int64_t count = shape.elements();
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    double value = 0;
    do {
      value = random_.uniform(fill.low, fill.high);
    } while (near_a_kink(value, fill));
    values.push_back(value);
  }
  if (fill.distinct) {  // evenly spaced numbers in random order, each with a small random offset
    std::vector<size_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
    for (size_t rank = 0; rank < order.size(); ++rank) {
      values[order[rank]] =
          fill.low + (fill.high - fill.low) * (static_cast<double>(rank) + random_.uniform(0.3, 0.7)) / static_cast<double>(count);
    }
  }
  return put(dtype, shape, role, std::move(values));
}

Value CaseInputs::integers(const Shape& shape, int64_t low, int64_t high) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(static_cast<double>(low + static_cast<int64_t>(random_.below(static_cast<uint64_t>(high - low)))));
  return put(DType::kI64, shape, ValueRole::kInput, std::move(values));
}

Value CaseInputs::quantized(DType dtype, const Shape& shape, int64_t low, int64_t high, ValueRole role) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(static_cast<double>(low + static_cast<int64_t>(random_.below(static_cast<uint64_t>(high - low + 1)))));
  return put(dtype, shape, role, std::move(values));
}

Value CaseInputs::fixed(Value value) {
  fixed_.insert(value.id());
  return value;
}

std::vector<OpCase> collective_cases();   // collective_cases.cpp
std::vector<OpCase> orthonormal_cases();  // orthonormal_cases.cpp
std::vector<OpCase> extents_cases();      // extents_cases.cpp
std::vector<OpCase> pixel_cases();        // pixels_cases.cpp

const std::vector<OpCase>& all_cases() {
  static const std::vector<OpCase> cases = [] {
    std::vector<OpCase> all;
    for (std::vector<OpCase> (*family)() : {conv_cases,          matmul_cases,
                                            attention_cases,     rotary_cases,
                                            cache_cases,         norm_cases,
                                            extents_cases,       batch_norm_depthwise_cases,
                                            pointwise_cases,     pool_cases,
                                            softmax_cases,       loss_cases,
                                            random_cases,        embedding_cases,
                                            recurrent_cases,     elementwise_cases,
                                            binary_cases,        reduce_cases,
                                            shape_cases,         shuffle_cases,
                                            collective_cases,    orthonormal_cases,
                                            index_cases,         boxes_cases,
                                            detection_cases,     flow_cases,
                                            update_cases,        quantize_cases,
                                            quantized_cases,     quantized_recurrent_cases,
                                            fake_quantize_cases, winograd_cases,
                                            weight_only_cases,   pixel_cases}) {
      for (OpCase& c : family()) all.push_back(std::move(c));
    }
    return all;
  }();
  return cases;
}

std::unique_ptr<CaseGraph> make_graph(const OpCase& c, DType real, bool gradient) {
  cpu();  // registers its operators
  ensure_ops_registered();
  auto made = std::make_unique<CaseGraph>();
  CaseInputs inputs(made->graph, real, c.name);
  c.build(inputs);
  GALLEY_ASSERT(!made->graph.nodes().empty(), c.name, " captures nothing");
  made->node = made->graph.nodes().size() - 1;
  made->feeds = inputs.feeds();
  if (gradient && !c.forward_only && made->graph.nodes().back().op->gradient != nullptr) add_gradient(c, inputs, *made);
  return made;
}

double gradient_error(const OpCase& c, double scale) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::unique_ptr<CaseGraph> forward = make_graph(c, DType::kF64, false);
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF64, true);
  const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds);
  const Interpreter interpreter(forward->graph);
  RandomStream random(99, c.name);
  double worst = 0;
  for (const auto& [input, gradient] : made->gradients) {
    const ValueInfo& info = made->graph.value(input);
    if (made->graph.producers()[static_cast<size_t>(input)] >= 0) continue;  // the output of an earlier node of the case
    const int64_t count = info.type.elements();
    std::vector<int64_t> picked;
    for (int64_t i = 0; i < std::min<int64_t>(count, 48); ++i) {
      picked.push_back(count <= 48 ? i : static_cast<int64_t>(random.below(static_cast<uint64_t>(count))));
    }
    double largest = 0;
    if (gradient && count > 0) {  // always includes the largest element, since the negative control needs one that is not zero
      const std::vector<double>& v = values.at(gradient.id()).v;
      const auto top = std::max_element(v.begin(), v.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
      largest = std::abs(*top);
      picked.push_back(top - v.begin());
    }
    std::map<std::string, RefArray> feeds = forward->feeds;
    for (int64_t i : picked) {
      double& x = feeds.at(info.name)[i];
      const double saved = x;
      // Fourth order: the error is h^4 times the fifth derivative plus 1e-16 / h of rounding, both near 1e-12.
      const double h = 1e-3 * std::max(1.0, std::abs(saved));
      const auto at = [&](double step) {
        x = saved + step;
        const double value = objective(*made, interpreter, feeds);
        x = saved;
        return value;
      };
      const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      const double rule = gradient ? scale * values.at(gradient.id())[i] : 0;
      const double error = std::abs(rule - slope) / std::max({largest, std::abs(slope), 1e-6});
      if (!std::isfinite(error)) return nan;
      worst = std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace galley::test
