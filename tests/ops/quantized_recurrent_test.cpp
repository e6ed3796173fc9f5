// Dynamic quantization of recurrent layers agrees with PyTorch's: the reference against tests/golden/quantize/recurrent.txt
// (torch.ao.nn.quantized.dynamic, made by make_recurrent.py in the same folder).

#include "libcore/ops/quantized_recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/registry.h"
#include "tests/ops/golden_file.h"

namespace galley::test {
namespace {

/// Captures and feeds the two operators of one direction, with weights quantized as by PyTorch's default observer: one symmetric scale per
/// weight tensor.
class Direction {
 public:
  Direction(Graph& graph, std::map<std::string, RefArray>& feeds, const GoldenArrays& arrays, Value x, const std::string& suffix)
      : graph_(graph), feeds_(feeds), arrays_(arrays), suffix_(suffix) {
    DynamicQuantizedLinearAttrs linear;
    linear.saturation = Saturation::kReduced;
    const Value weight = integers("weight_ih"), scale = scales("weight_ih");
    input_part = dynamic_quantized_linear(x, weight, scale, real("bias_ih" + suffix_), linear);
    weight_hh = integers("weight_hh");
    scale_hh = scales("weight_hh");
    bias_hh = real("bias_hh" + suffix_);
  }
  Value real(const std::string& name) {
    feeds_[name] = arrays_.at(name);
    TensorType type;
    type.shape = arrays_.at(name).shape;
    return graph_.add_input(name, type, ValueRole::kInput);
  }
  Value input_part, weight_hh, scale_hh, bias_hh;

 private:
  QuantParams map_of(const RefArray& w) const {
    double absmax = 0;
    for (const double v : w.v) absmax = std::max(absmax, std::abs(v));
    return symmetric_params(absmax, quant_range(QuantDType::kInt8));
  }
  Value integers(const std::string& leaf) {
    const RefArray& w = arrays_.at(leaf + suffix_);
    RefArray q = w;
    const QuantParams params = map_of(w);
    for (double& v : q.v) v = static_cast<double>(quantize_value(static_cast<float>(v), params));
    feeds_[leaf + suffix_] = q;
    TensorType type;
    type.dtype = DType::kI8;
    type.shape = w.shape;
    return graph_.add_input(leaf + suffix_, type, ValueRole::kParameter);
  }
  Value scales(const std::string& leaf) {
    const RefArray& w = arrays_.at(leaf + suffix_);
    feeds_[leaf + suffix_ + "_scale"] = {{w.shape[0]}, std::vector<double>(static_cast<size_t>(w.shape[0]), map_of(w).scale)};
    TensorType type;
    type.shape = {w.shape[0]};
    return graph_.add_input(leaf + suffix_ + "_scale", type, ValueRole::kParameter);
  }

  Graph& graph_;
  std::map<std::string, RefArray>& feeds_;
  const GoldenArrays& arrays_;
  std::string suffix_;
};

/// Largest difference between `got` [N,T,H] and features [offset, offset + H) of `want`.
double recurrent_difference(const RefArray& got, const RefArray& want, int64_t offset) {
  const int64_t hidden = got.shape[-1], width = want.shape[-1];
  double largest = 0;
  for (int64_t i = 0; i < got.shape.elements(); ++i) {
    const double error = std::abs(got[i] - want[i / hidden * width + offset + i % hidden]);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

TEST(QuantizedRecurrent, ResultsAreThoseOfPyTorch) {
  ensure_ops_registered();
  const std::map<std::string, GoldenArrays> golden = read_golden("quantize/recurrent.txt");
  ASSERT_EQ(golden.size(), 4u);
  // Both sides have the same integers and sums; results differ by float32 rounding, also of tanh and sigmoid. The effect of quantization is
  // a hundred times larger, so a wrong range, zero point or rounding is detected.
  constexpr double kTolerance = 2e-6;
  for (const auto& [name, arrays] : golden) {
    SCOPED_TRACE(name);
    Graph graph;
    std::map<std::string, RefArray> feeds;
    TensorType type;
    type.shape = arrays.at("x").shape;
    const Value x = graph.add_input("x", type, ValueRole::kInput);
    feeds["x"] = arrays.at("x");
    Direction forward(graph, feeds, arrays, x, "_l0");
    DynamicQuantizedRecurrentAttrs attrs;
    attrs.saturation = Saturation::kReduced;
    std::vector<Value> results;
    if (name == "gru") {
      const QuantizedRecurrent r =
          dynamic_quantized_gru(forward.input_part, forward.weight_hh, forward.scale_hh, forward.bias_hh, {}, attrs);
      results = {r.y};
    } else if (name == "rnn_step") {
      DynamicQuantizedRnnAttrs rnn;
      rnn.saturation = Saturation::kReduced;
      const QuantizedRecurrent r =
          dynamic_quantized_rnn(forward.input_part, forward.weight_hh, forward.scale_hh, forward.bias_hh, forward.real("h0"), rnn);
      results = {r.y};
    } else {
      results = {dynamic_quantized_lstm(forward.input_part, forward.weight_hh, forward.scale_hh, forward.bias_hh, {}, {}, attrs).y};
      if (name == "lstm_both") {
        Direction back(graph, feeds, arrays, x, "_l0_reverse");
        attrs.reverse = true;
        results.push_back(dynamic_quantized_lstm(back.input_part, back.weight_hh, back.scale_hh, back.bias_hh, {}, {}, attrs).y);
      }
    }
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);
    for (size_t i = 0; i < results.size(); ++i) {
      const auto offset = static_cast<int64_t>(i) * 8;
      const double error = recurrent_difference(values.at(results[i].id()), arrays.at("y"), offset);
      if (!(error <= kTolerance)) ADD_FAILURE() << "differs by " << error;
      EXPECT_GT(recurrent_difference(values.at(results[i].id()), arrays.at("float_y"), offset), 100 * kTolerance)
          << "quantization itself makes a difference";
    }
  }
}

}  // namespace
}  // namespace galley::test
