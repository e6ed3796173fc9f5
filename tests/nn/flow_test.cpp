// Law: with equal weights, RAFT has torchvision's names, flows, gradients and running statistics. The numbers are from
// tests/golden/models/make_flow.py, in double; the reference interpreter also computes in double. Compiled in f32, it gives the same flow.
#include "libcore/nn/flow.h"

#include <gtest/gtest.h>

#include <fstream>

#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_file.h"
#include "tests/nn/golden_model.h"
#include "tests/support/golden_weights.h"

namespace galley {
namespace {

constexpr int64_t kUpdates = 3;

Component reduced(const std::string& type) {
  const bool large = type == "raft_large";
  Component model = default_model(type);
  const std::vector<std::pair<std::string, std::vector<double>>> options{
      {"num_flow_updates", {kUpdates}},
      {"feature_encoder_layers", {8, 8, 12, 16, 20}},
      {"context_encoder_layers", {8, 8, 12, 16, 24}},
      {"corr_block_num_levels", {2}},
      {"corr_block_radius", {2}},
      {"motion_encoder_corr_layers", large ? std::vector<double>{12, 10} : std::vector<double>{12}},
      {"motion_encoder_flow_layers", {8, 6}},
      {"motion_encoder_out_channels", {11}},
      {"recurrent_block_hidden_state_size", {10}},
      {"flow_head_hidden_size", {9}}};
  for (const auto& [name, values] : options) {
    Setter setter(name, values);
    model.params->options(setter);
    EXPECT_TRUE(setter.found) << name;
  }
  return model;
}

struct CapturedFlow {
  CapturedFlow(const Component& model, Mode mode, const Shape& shape) {
    Builder b(graph, {.mode = mode});
    NamedValues inputs;
    for (const std::string_view name : {kFirstImage, kSecondImage}) inputs.emplace_back(name, b.input(std::string(name), {.shape = shape}));
    results = build_model(b, model, inputs);
    specs = b.take_parameters();
  }
  void fill(const Shape& shape) {
    feeds = golden_feeds(specs);
    for (const std::string_view name : {kFirstImage, kSecondImage}) {
      const std::string key(name);
      feeds[key] = {shape, golden_values(key, shape.elements())};
    }
  }
  Graph graph;
  NamedValues results;  // the last flow, then the earlier ones
  std::vector<ParameterSpec> specs;
  std::map<std::string, RefArray> feeds;
};

const Shape kImages{2, 3, 32, 40};

class Raft : public testing::TestWithParam<std::string> {};

TEST_P(Raft, Evaluation) {
  const GoldenFile want = read_golden(GetParam());
  CapturedFlow model(reduced(GetParam()), Mode::kEvaluation, kImages);
  model.fill(kImages);
  const auto values = interpret(model.graph, model.feeds);
  const std::vector<double>& flow = values.at(model.results[0].second.id()).v;
  // The file has the first sample, with nine digits.
  expect_golden("flow", want.at("flow"), std::span(flow).first(flow.size() / 2), 1e-8);
}

// f32 through 30 layers and three updates: 1e-4 of the largest flow. Batch norms of the context encoder are folded.
TEST_P(Raft, Compiled) {
  const GoldenFile want = read_golden(GetParam());
  CapturedFlow model(reduced(GetParam()), Mode::kEvaluation, kImages);
  model.fill(kImages);
  model.graph.add_output("flow", model.results[0].second);
  model.graph.remove_dead_nodes();
  fold_batch_norm(model.graph);
  fuse_inference(model.graph);
  const auto program = compile(std::move(model.graph));
  ParameterStore store;
  store.declare(*program);
  const auto tensor = [&](const std::string& name) {
    Tensor values(DType::kF32, model.feeds.at(name).shape);
    values.from_doubles(model.feeds.at(name).v);
    return values;
  };
  for (const ParameterSpec& spec : model.specs)
    if (spec.type.dtype == DType::kF32) store.set(spec.name, tensor(spec.name));
  Execution execution(program, store);
  for (const char* name : {"image1", "image2"}) execution.feed(name, tensor(name));
  execution.run();
  const std::vector<double> flow = execution.output("flow").to_doubles();
  expect_golden("flow", want.at("flow"), std::span(flow).first(flow.size() / 2), 1e-4);
}

TEST_P(Raft, Training) {
  const GoldenFile want = read_golden(GetParam());
  CapturedFlow model(reduced(GetParam()), Mode::kTraining, kImages);
  model.fill(kImages);
  const Shape dense{2, 2, 32, 40};
  const Value target = model.graph.add_input("target", {.shape = dense}, ValueRole::kInput);
  const Value valid = model.graph.add_input("valid", {.shape = {2, 1, 32, 40}}, ValueRole::kInput);
  model.feeds["target"] = {dense, golden_values("target", dense.elements(), 5)};
  model.feeds["valid"] = {{2, 1, 32, 40}, golden_values("valid", dense.elements() / 2)};
  for (double& v : model.feeds["valid"].v) v = v > -0.5 ? 1 : 0;
  ASSERT_EQ(model.results.size(), static_cast<size_t>(kUpdates));
  std::vector<Value> flows;
  for (size_t i = 1; i < model.results.size(); ++i) flows.push_back(model.results[i].second);
  flows.push_back(model.results[0].second);
  Value loss;
  for (size_t i = 0; i < flows.size(); ++i) {
    const Value part = affine(mean(mul(abs(sub(flows[i], target)), valid), std::vector<int64_t>{}),
                              std::pow(0.8, static_cast<double>(flows.size() - 1 - i)));
    loss = loss ? add(loss, part) : part;
  }
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs)
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, loss.id(), wanted);
  const auto values = interpret(model.graph, model.feeds);
  for (size_t i = 0; i < flows.size(); ++i) {
    const std::string key = cat("flow", i);
    expect_golden(key, want.at(key), values.at(flows[i].id()).v, 1e-8);
  }
  expect_golden("loss", want.at("loss"), values.at(loss.id()).v, 1e-9);
  std::map<std::string, ValueId> after;
  for (const Node& node : model.graph.nodes()) {
    for (const InPlace& update : node.op->updates)
      after[model.graph.value(node.input(static_cast<size_t>(update.input))).name] = node.outputs[static_cast<size_t>(update.output)];
  }
  double largest = 0;
  for (const auto& [key, entry] : want)
    if (key.starts_with("grad:")) largest = std::max(largest, entry.rms());
  size_t compared = 0;
  for (const auto& [key, entry] : want) {
    const std::string name = key.substr(key.find(':') + 1);
    if (key.starts_with("grad:")) {
      // Gradients of biases before norms vanish: their errors are relative to the largest gradient.
      expect_golden(key, entry, values.at(gradients.at(model.graph.find_input(name))).v, 1e-7, 1e-10 * largest);
      ++compared;
    } else if (key.starts_with("buffer:")) {
      expect_golden(key, entry, values.at(after.at(name)).v, 1e-8);
      ++compared;
    }
  }
  const auto counters = std::count_if(model.specs.begin(), model.specs.end(),
                                      [](const ParameterSpec& spec) { return spec.name.ends_with("num_batches_tracked"); });
  EXPECT_EQ(compared + static_cast<size_t>(counters), model.specs.size());
}

INSTANTIATE_TEST_SUITE_P(Zoo, Raft, testing::Values("raft_large", "raft_small"), [](const auto& info) { return info.param; });

TEST(RaftModels, NamesAreTorchvisions) {
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/models/flow_models.txt");
  ASSERT_TRUE(file);
  std::map<std::string, std::string> shapes;
  std::string line, before;
  size_t listed = 0, models = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, name, shape;
    size_t shared = 0;
    words >> kind;
    if (kind != "model") words >> shared;
    words >> name >> shape;
    name = before = before.substr(0, shared) + name;
    if (kind == "model") {
      EXPECT_EQ(listed, shapes.size());
      before.clear();
      listed = 0;
      ++models;
      shapes.clear();
      const std::vector<ParameterSpec> specs = CapturedFlow(default_model(name), Mode::kTraining, {1, 3, 128, 128}).specs;
      EXPECT_EQ(std::to_string(parameter_count(specs)), shape) << name;
      for (const ParameterSpec& spec : specs) {
        std::string& sizes = shapes[spec.name];
        for (const int64_t size : spec.type.shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
        sizes = cat(spec.role == ValueRole::kParameter ? "p " : "b ", sizes.empty() ? "-" : sizes);
      }
      continue;
    }
    ++listed;
    ASSERT_TRUE(shapes.contains(name)) << name;
    EXPECT_EQ(shapes.at(name), kind + " " + shape) << name;
  }
  EXPECT_EQ(listed, shapes.size());
  EXPECT_EQ(models, 2u);
}

TEST(RaftModels, OddSizesAreRefusedWithACure) {
  try {
    CapturedFlow(default_model("raft_small"), Mode::kEvaluation, {1, 3, 436, 120});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("multiple of 8 and at least 128"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("size: [440, 128]"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("padding: [0, 0, 8, 4]"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace galley
