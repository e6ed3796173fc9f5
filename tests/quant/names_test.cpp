// Laws of quant_names: conv2d and linear have their module's path, other operators path and operator, repeated names are numbered; folded
// weights have no names; the digest of a model does not depend on the batch.

#include "libcore/quant/names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "libcore/base/error.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/quant/calibration.h"

namespace galley::quant_test {
namespace {

/// A residual block after fusion: the weight of conv1 is folded (mul), the shortcut is added twice.
Graph block(int batch, const std::string& last = "add") {
  ensure_ops_registered();
  const std::string x = cat("f32 [", batch, ",4,6,6]"), y = cat("f32 [", batch, ",4]");
  std::string text = "galley graph 1\n%0 = input \"input\" : " + x +
                     "\n%1 = parameter \"layer1.conv1.weight\" : f32 [4,4,1,1]\n%2 = parameter \"scale\" : f32 [4,1,1,1]\n%3 = parameter "
                     "\"fc.weight\" : f32 [4,4]\n";
  text += "%4 = mul(%1, %2) : f32 [4,4,1,1] @\"layer1.conv1\"\n";
  text += "%5 = conv2d(%0, %4) : " + x + " @\"layer1.conv1\"\n";
  text += "%6 = add(%5, %0) : " + x + " @\"layer1\"\n%7 = " + last + "(%6, %5) : " + x + " @\"layer1\"\n";
  text += "%8 = mean(%7) axes=[2,3] : " + y + "\n%9 = linear(%8, %3) : " + y + " @\"fc\"\noutput \"output\" = %9\n";
  return parse_graph(text);
}

TEST(QuantNames, AreTheUsersNames) {
  const Graph graph = block(2);
  EXPECT_EQ(quant_names(graph), (std::vector<std::string>{"", "layer1.conv1", "layer1.add", "layer1.add.2", "mean", "fc"}));
  std::vector<std::string> values;
  for (const auto& [id, name] : quant_values(graph)) values.push_back(name);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, (std::vector<std::string>{"fc", "input", "layer1.add", "layer1.add.2", "layer1.conv1", "mean"}))
      << "folded weights are not values";
  EXPECT_EQ(quant_name(graph, graph.nodes()[3]), "layer1.add.2");
}

/// A token, attention of one head within a module, and a projection of its result.
Graph attending() {
  Graph graph;
  const auto f32 = [](const Shape& shape) { return TensorType{DType::kF32, shape, {}, {}}; };
  const Value x = graph.add_input("input", f32({2, 3, 4}), ValueRole::kInput),
              qkv = graph.add_input("qkv", f32({12, 4}), ValueRole::kParameter),
              out = graph.add_input("out", f32({4, 4}), ValueRole::kParameter);
  graph.set_path("attn");
  const Value y = attention({.q = reshape(linear(x, qkv, {}), {2, 3, 3, 4})}).o;
  graph.add_output("output", linear(reshape(y, {2, 3, 4}), out, {}));
  return graph;
}

TEST(QuantNames, FilesFromBeforeAttentionWasAnOperator) {
  using Names = std::vector<std::string>;
  const Graph graph = attending();
  ASSERT_EQ(watched_names(graph), (Names{"input", "attn", "attn.attention", "attn.2"}));
  const Names former{"input",       "attn",        "attn.permute", "attn.slice",    "attn.slice.2",   "attn.slice.3",
                     "attn.affine", "attn.matmul", "attn.softmax", "attn.matmul.2", "attn.permute.2", "attn.2"};
  const std::map<std::string, std::string> expected{
      {"input", "input"}, {"attn", "attn"}, {"attn.attention", "attn.permute.2"}, {"attn.2", "attn.2"}};
  EXPECT_EQ(former_names(graph, former), expected);
  EXPECT_EQ(former_names(graph, Names{"input", "attn.permute.2"}), expected) << "training keeps some values";
  EXPECT_TRUE(former_names(graph, Names{"input", "attn", "head"}).empty()) << "another model";
  EXPECT_TRUE(former_names(graph, watched_names(graph)).empty()) << "a file of today needs no other names";
  EXPECT_TRUE(former_names(block(2), former).empty()) << "a model without attention";
}

TEST(QuantNames, InfinityOutsideImagesIsNotObserved) {
  Graph graph;
  const Value x = graph.add_input("input", {DType::kF32, {1, 2, 4, 4}, {}, {}}, ValueRole::kInput),
              extents = graph.add_input("extents", {DType::kI64, {1, 2}, {}, {}}, ValueRole::kInput);
  MaxPool2dAttrs window;
  window.kernel_size = {2};
  const Value zeros = fill_outside(x, extents), most = max_pool2d(fill_outside(zeros, extents, -INFINITY), window).y;
  const Value result = fill_outside(most, extents);
  EXPECT_EQ(watched_names(graph), (std::vector<std::string>{"input", "fill_outside", "fill_outside.3"}));
  EXPECT_EQ(range_sources(graph)[static_cast<size_t>(most.id())], zeros.id());
  EXPECT_EQ(range_sources(graph)[static_cast<size_t>(result.id())], result.id());
}

TEST(QuantNames, TheDigestOfAModel) {
  EXPECT_EQ(model_digest(block(2)), model_digest(block(7)));
  EXPECT_NE(model_digest(block(2)), model_digest(block(2, "mul")));
}

Calibration calibration_of(float low, float high, const std::string& weights = "a") {
  Calibration calibration{.order = {"input", "fc"},
                          .parts = {{.samples = 2, .batches = 1, .batch = 2}},
                          .model = "m",
                          .weights = {{"fc.weight", weights}, {"fc.bias", "b"}}};
  for (const std::string& name : calibration.order) {
    const std::vector<float> values{low, high};
    calibration.values[name].add(values.data(), 2, 1, name);
  }
  return calibration;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.text();
  }
  return "";
}

TEST(Calibration, MergesWhatBelongsTogether) {
  Calibration first = calibration_of(0, 1);
  first.merge(calibration_of(-3, 0.5f), "b.calib");
  EXPECT_EQ(first.samples(), 4);
  EXPECT_EQ(first.at("fc").range().min, -3);
  EXPECT_EQ(first.at("fc").range().max, 1);
  EXPECT_EQ(first.parts.size(), 2u);
  const std::string other_weights = message_of([&] { first.merge(calibration_of(0, 1, "c"), "c.calib"); });
  EXPECT_NE(other_weights.find("c.calib"), std::string::npos) << other_weights;
  EXPECT_NE(other_weights.find("1 of 2 tensors differ (first fc.weight)"), std::string::npos) << other_weights;
  Calibration other = calibration_of(0, 1);
  other.model = "n";
  EXPECT_NE(message_of([&] { first.merge(other, "d.calib"); }).find("the same weights, but to other operators"), std::string::npos);
  other.weights["fc.weight"] = "c";
  EXPECT_NE(message_of([&] { first.merge(other, "d.calib"); }).find("another model"), std::string::npos);
  Calibration more = calibration_of(0, 1);
  more.weights["new"] = "x";
  EXPECT_NE(message_of([&] { first.merge(more, "e.calib"); }).find("1 exist only in one of them (first new)"), std::string::npos)
      << message_of([&] { first.merge(more, "e.calib"); });
  EXPECT_NE(message_of([&] { first.at("fcc"); }).find("fc"), std::string::npos);
}

}  // namespace
}  // namespace galley::quant_test
