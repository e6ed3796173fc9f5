// Law: every family computes what torchvision computes at the same weights: logits in evaluation and training, loss, gradients of the
// input and of every parameter, running statistics. tests/golden/models/make_golden.py made the numbers, in double; the reference
// interpreter computes in double too.
#include <gtest/gtest.h>

#include "tests/nn/golden_file.h"
#include "tests/nn/golden_model.h"

namespace galley {

const GoldenModel kGoldenModels[] = {
    {"mlp", "mlp", {3, 1, 28, 28}, {{"hidden", {64, 32}}}},
    {"cnn", "cnn", {4, 1, 28, 28}, {{"channels", {8, 16, 24}}, {"dropout", {0}}}},
    {"cifar_resnet20", "cifar_resnet20", {4, 3, 16, 16}, {}},
    {"resnet18", "resnet18", {2, 3, 48, 48}, {}},
    {"resnet50_dilated", "resnet50", {2, 3, 32, 32}, {{"replace_stride_with_dilation", {0, 0, 1}}}},
    {"resnext50_32x4d", "resnext50_32x4d", {2, 3, 32, 32}, {}},
    {"mobilenet_v2", "mobilenet_v2", {2, 3, 48, 48}, {{"width_mult", {0.5}}, {"dropout", {0}}}},
    {"mobilenet_v3_large", "mobilenet_v3_large", {2, 3, 48, 48}, {{"width_mult", {0.75}}, {"dropout", {0}}}},
    {"mobilenet_v3_small", "mobilenet_v3_small", {2, 3, 48, 48}, {{"reduced_tail", {1}}, {"dilated", {1}}, {"dropout", {0}}}},
    {"vgg11", "vgg11", {2, 3, 32, 32}, {{"hidden_features", {32}}, {"dropout", {0}}}},
    {"vgg13_bn", "vgg13_bn", {2, 3, 32, 32}, {{"hidden_features", {32}}, {"dropout", {0}}}},
};

class GoldenFamily : public testing::TestWithParam<GoldenModel> {};

Component with_ten_classes(const GoldenModel& golden) {
  Component model = golden.component();
  Setter classes("num_classes", {10});
  model.params->fields(classes);
  return model;
}

TEST_P(GoldenFamily, Evaluation) {
  const GoldenModel& golden = GetParam();
  const GoldenFile want = read_golden(golden.file);
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  const Value x = b.input("input", {.shape = golden.input});
  const Value logits = build_model(b, with_ten_classes(golden), x).front().second;
  graph.add_output("logits", logits);
  std::map<std::string, RefArray> feeds = golden_feeds(b.parameters());
  feeds["input"] = {golden.input, golden_input("input", golden.input)};
  const auto values = interpret(graph, feeds);
  // Both sides round at 1e-16; the sums of 50 layers, and 12 printed digits, stay below 1e-10 of the largest logits.
  expect_golden("logits", want.at("eval"), values.at(logits.id()).v, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Zoo, GoldenFamily, testing::ValuesIn(kGoldenModels), [](const auto& info) { return info.param.file; });

}  // namespace galley
