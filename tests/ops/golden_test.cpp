// The operators agree with PyTorch's: results and gradients of the reference against tests/golden/ops/operators.txt (float64, made by
// make.py in the same folder).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/conv.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "tests/ops/golden_file.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

using Arrays = GoldenArrays;

const std::map<std::string, Arrays>& operator_golden() {
  static const std::map<std::string, Arrays> cases = read_golden("ops/operators.txt");
  return cases;
}

/// How to capture a golden case: the operator with arrays of the file as inputs, by their names.
class GoldenInputs {
 public:
  GoldenInputs(Graph& graph, const Arrays& arrays) : graph_(graph), arrays_(arrays) {}
  Value operator()(const std::string& name, DType dtype = DType::kF64) {
    if (arrays_.count(name) == 0) return {};
    TensorType type;
    type.dtype = dtype;
    type.shape = arrays_.at(name).shape;
    return graph_.add_input(name, type, ValueRole::kInput);
  }

 private:
  Graph& graph_;
  const Arrays& arrays_;
};
struct GoldenCase {
  std::string name;
  std::function<void(GoldenInputs&)> build;
};

void add_golden_layers(std::vector<GoldenCase>& cases) {
  const auto conv = [&](const std::string& name, std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                        int64_t groups) {
    cases.push_back({"conv2d_" + name, [=](GoldenInputs& in) {
                       Conv2dAttrs a;
                       a.stride = stride;
                       a.padding = padding;
                       a.dilation = dilation;
                       a.groups = groups;
                       const Value x = in("x"), weight = in("weight");
                       conv2d(x, weight, in("bias"), a);
                     }});
  };
  conv("groups", {2, 1}, {1, 0}, {1}, 2);
  conv("dilation", {2}, {1, 2}, {2, 3}, 1);
  conv("depthwise", {1}, {1}, {1}, 3);
  cases.push_back({"batch_norm_training", [](GoldenInputs& in) {
                     const Value x = in("x"), gamma = in("gamma");
                     batch_norm(x, gamma, in("beta"));
                   }});
  cases.push_back({"batch_norm_inference", [](GoldenInputs& in) {
                     const Value x = in("x"), gamma = in("gamma"), beta = in("beta"), mean = in("running_mean");
                     batch_norm_inference(x, gamma, beta, mean, in("running_var"));
                   }});
  cases.push_back({"layer_norm", [](GoldenInputs& in) {
                     LayerNormAttrs a;
                     a.dims = 2;
                     const Value x = in("x"), gamma = in("gamma");
                     layer_norm(x, gamma, in("beta"), a);
                   }});
  cases.push_back({"group_norm", [](GoldenInputs& in) {
                     GroupNormAttrs a;
                     a.groups = 3;
                     const Value x = in("x"), gamma = in("gamma");
                     group_norm(x, gamma, in("beta"), a);
                   }});
  for (bool ceil : {false, true}) {
    const std::string suffix = ceil ? "_ceil" : "";
    for (bool dilated : {false, true}) {
      cases.push_back({(dilated ? "max_pool2d_dilated" : "max_pool2d") + suffix, [=](GoldenInputs& in) {
                         MaxPool2dAttrs a;
                         a.kernel_size = dilated ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{3};
                         a.stride = dilated ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{2};
                         a.padding = dilated ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{1};
                         if (dilated) a.dilation = {2, 1};
                         a.ceil_mode = ceil;
                         max_pool2d(in("x"), a);
                       }});
    }
    for (bool pad : {false, true}) {
      cases.push_back({"avg_pool2d" + suffix + (pad ? "_pad" : ""), [=](GoldenInputs& in) {
                         AvgPool2dAttrs a;
                         a.kernel_size = {3};
                         a.stride = {2};
                         a.padding = {1};
                         a.ceil_mode = ceil;
                         a.count_include_pad = pad;
                         avg_pool2d(in("x"), a);
                       }});
    }
  }
  cases.push_back({"adaptive_avg_pool2d", [](GoldenInputs& in) {
                     AdaptiveAvgPool2dAttrs a;
                     a.output_size = {3, 2};
                     adaptive_avg_pool2d(in("x"), a);
                   }});
  cases.push_back({"adaptive_max_pool2d", [](GoldenInputs& in) {
                     AdaptiveMaxPool2dAttrs a;
                     a.output_size = {3, 2};
                     adaptive_max_pool2d(in("x"), a);
                   }});
}

/// Three axes: convolutions, and pools that are composed of pools over two.
void add_golden_volumes(std::vector<GoldenCase>& cases) {
  const auto conv = [&](const std::string& name, std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                        int64_t groups) {
    cases.push_back({"conv3d_" + name, [=](GoldenInputs& in) {
                       Conv2dAttrs a;
                       a.stride = stride;
                       a.padding = padding;
                       a.dilation = dilation;
                       a.groups = groups;
                       const Value x = in("x"), weight = in("weight");
                       conv3d(x, weight, in("bias"), a);
                     }});
  };
  conv("groups", {2, 1, 2}, {1, 0, 1}, {1}, 2);
  conv("dilation", {1, 2, 1}, {2, 1, 0}, {2, 1, 3}, 1);
  conv("factorized", {2, 1, 1}, {1, 0, 0}, {1}, 1);
  for (bool ceil : {false, true}) {
    const std::string suffix = ceil ? "_ceil" : "";
    cases.push_back({"max_pool3d" + suffix, [=](GoldenInputs& in) {
                       MaxPool2dAttrs a;
                       a.kernel_size = {3, 2, 3};
                       a.stride = {2, 1, 2};
                       a.padding = {1, 0, 1};
                       a.dilation = {1, 2, 1};
                       a.ceil_mode = ceil;
                       max_pool3d(in("x"), a);
                     }});
    for (bool pad : {false, true}) {
      cases.push_back({"avg_pool3d" + suffix + (pad ? "_pad" : ""), [=](GoldenInputs& in) {
                         AvgPool2dAttrs a;
                         a.kernel_size = {3, 2, 3};
                         a.stride = {2, 1, 2};
                         a.padding = {1, 1, 0};
                         a.ceil_mode = ceil;
                         a.count_include_pad = pad;
                         avg_pool3d(in("x"), a);
                       }});
    }
  }
  cases.push_back({"adaptive_avg_pool3d", [](GoldenInputs& in) {
                     AdaptiveAvgPool2dAttrs a;
                     a.output_size = {2, 3, 2};
                     adaptive_avg_pool3d(in("x"), a);
                   }});
}

void add_golden_losses(std::vector<GoldenCase>& cases) {
  for (int r = 0; r < 3; ++r) {
    const auto reduction = static_cast<Reduction>(r);
    const std::string name(kReductionNames[static_cast<size_t>(r)]);
    LossAttrs plain;
    plain.reduction = reduction;
    for (bool smoothed : {false, true}) {
      for (bool weighted : {false, true}) {
        for (bool probability : {false, true}) {
          CrossEntropyAttrs a;
          a.reduction = reduction;
          a.label_smoothing = smoothed ? 0.2 : 0;
          a.ignore_index = 1;
          cases.push_back({cat("cross_entropy_", probability ? "probability_" : "index_", name, smoothed ? "_smoothed" : "",
                               weighted ? "_weighted" : ""),
                           [=](GoldenInputs& in) {
                             const Value x = in("x"), target = in("target", probability ? DType::kF64 : DType::kI64);
                             cross_entropy(x, target, in("class_weight"), a);
                           }});
        }
      }
    }
    cases.push_back({"mse_loss_" + name, [=](GoldenInputs& in) {
                       const Value x = in("x");
                       mse_loss(x, in("target"), plain);
                     }});
    cases.push_back({"bce_with_logits_" + name, [=](GoldenInputs& in) {
                       const Value x = in("x"), target = in("target");
                       bce_with_logits(x, target, in("weight"), plain);
                     }});
  }
}

void add_functions(std::vector<GoldenCase>& cases) {
  for (const char* name : {"prelu_channels", "prelu_one"})
    cases.push_back({name, [](GoldenInputs& in) {
                       const Value x = in("x");
                       emit("prelu", {x, in("weight")});
                     }});
}

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const auto add : {add_golden_layers, add_golden_volumes, add_golden_losses, add_functions}) add(cases);
  return cases;
}

/// Both sides compute in double and differ in the order of sums. torch 2 also applies label smoothing of float64 in double.
void expect_same(const std::string& what, const RefArray& got, const RefArray& want) {
  ASSERT_EQ(got.shape, want.shape) << what;
  for (int64_t i = 0; i < want.shape.elements(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= 1e-11 * std::max(1.0, std::abs(want[i]))))
      ADD_FAILURE() << what << " element " << i << " is " << got[i] << ", PyTorch " << want[i];
  }
}

TEST(Golden, ResultsAndGradientsAreThoseOfPyTorch) {
  const std::vector<GoldenCase> cases = golden_cases();
  EXPECT_EQ(cases.size(), operator_golden().size()) << "each case of the file is tested";
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_EQ(operator_golden().count(c.name), 1u);
    const Arrays& arrays = operator_golden().at(c.name);
    ensure_ops_registered();
    Graph graph;
    GoldenInputs inputs(graph, arrays);
    c.build(inputs);
    const std::vector<Node> nodes(graph.nodes().begin(), graph.nodes().end());  // each reads the result of the one before
    const Node& node = nodes.front();
    std::map<std::string, RefArray> feeds;
    std::vector<bool> wanted;
    for (ValueId id : node.inputs) {
      wanted.push_back(id != kNoValue && arrays.count("d_" + graph.value(id).name) == 1);
      if (id != kNoValue) feeds[graph.value(id).name] = arrays.at(graph.value(id).name);
    }
    const ValueId y = nodes.back().outputs[0];
    Value cotangent = graph.add_input("cotangent", graph.type(y), ValueRole::kInput);
    feeds["cotangent"] = arrays.at("cotangent");
    const auto gradient_of = [&](const Node& of, std::vector<bool> inputs) {
      std::vector<Value> cotangents(of.outputs.size());
      cotangents[0] = cotangent;
      GradientBuilder builder(graph, of, cotangents, std::move(inputs));
      of.op->gradient(builder);
      return builder.result();
    };
    for (size_t n = nodes.size() - 1; n > 0; --n) cotangent = gradient_of(nodes[n], {true})[0];
    const std::vector<Value> gradients = gradient_of(node, wanted);
    const std::map<ValueId, RefArray> values = interpret(graph, feeds);
    expect_same("y", values.at(y), arrays.at("y"));
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) continue;
      const std::string name = graph.value(node.inputs[i]).name;
      ASSERT_TRUE(gradients[i]) << name;
      expect_same("d_" + name, values.at(gradients[i].id()), arrays.at("d_" + name));
    }
  }
}

TEST(Golden, RunningStatisticsAreThoseOfPyTorch) {
  const Arrays& arrays = operator_golden().at("batch_norm_training");
  ensure_ops_registered();
  Graph graph;
  GoldenInputs in(graph, arrays);
  const BatchNorm norm = batch_norm(in("x"), {}, {});
  BatchNormUpdateAttrs a;
  a.momentum = 0.1;
  a.count = arrays.at("x").shape.elements() / arrays.at("x").shape[1];
  const Value mean = in("running_mean");
  const std::vector<Value> updated = batch_norm_update(mean, in("running_var"), norm.mean, norm.var, {}, a);
  const std::map<ValueId, RefArray> values = interpret(graph, arrays);
  expect_same("running_mean", values.at(updated[0].id()), arrays.at("new_mean"));
  expect_same("running_var", values.at(updated[1].id()), arrays.at("new_var"));
}

}  // namespace
}  // namespace galley::test
