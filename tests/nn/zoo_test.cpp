// Law: every zoo model has the parameters and buffers of its torchvision counterpart: names, shapes, order and count.
#include "libcore/nn/zoo.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace galley {
namespace {

std::vector<ParameterSpec> specs_of(const Component& model, Mode mode, NamedValues* results = nullptr) {
  Graph graph;
  Builder b(graph, {.mode = mode});
  const ModelInfo info = model_info(model);
  TensorType type{.dtype = info.input_dtype, .shape = {2}, .names = {"N"}};
  for (const int64_t size : info.input_shape) type.shape.push_back(size);
  type.names.insert(type.names.end(), info.input_names.begin(), info.input_names.end());
  const NamedValues made = build_model(b, model, b.input("input", type));
  const int rank = info.output == ModelOutput::kPixelClasses ? 4 : info.output == ModelOutput::kTokens ? 3 : 2;
  EXPECT_EQ(made.front().second.shape().rank(), rank) << model.type;
  if (results != nullptr) *results = made;
  return b.take_parameters();
}

std::string sizes(const Shape& shape) {
  if (shape.rank() == 0) return "-";
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

TEST(Zoo, ParametersAreTorchvisions) {
  // "model NAME COUNT", then "p|b SHARED NAME SIZES" in the order of state_dict; the first SHARED characters are those of the previous
  // name.
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/models/zoo.txt");
  ASSERT_TRUE(file);
  std::set<std::string> seen;
  std::vector<ParameterSpec> specs;
  size_t next = 0;
  std::string line, model, before;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, name, shape;
    size_t shared = 0;
    words >> kind;
    if (kind != "model") words >> shared;
    words >> name >> shape;
    name = before = before.substr(0, shared) + name;
    if (kind == "model") {
      before.clear();
      EXPECT_EQ(next, specs.size()) << model << " has parameters that the reference has not";
      model = name;
      seen.insert(name);
      specs = specs_of(default_model(model), Mode::kTraining);
      next = 0;
      EXPECT_EQ(std::to_string(parameter_count(specs)), shape) << model;
      continue;
    }
    ASSERT_LT(next, specs.size()) << model << " lacks " << name;
    const ParameterSpec& spec = specs[next++];
    ASSERT_EQ(spec.name, name) << model;
    EXPECT_EQ(sizes(spec.type.shape), shape) << model << " " << name;
    EXPECT_EQ(spec.role == ValueRole::kParameter ? "p" : "b", kind) << model << " " << name;
    EXPECT_EQ(spec.trainable, kind == "p");
  }
  EXPECT_EQ(next, specs.size());
  for (const ComponentKind& kind : models()) {
    if (!is_zoo_model(kind.type) || seen.contains(std::string(kind.type))) continue;
    EXPECT_FALSE(model_info(default_model(kind.type)).inputs.empty()) << kind.type << " is not compared; encoders are, in encoder_test.cpp";
  }
  EXPECT_GE(seen.size(), 90u);
}

TEST(Zoo, PublishedCounts) {
  // Parameter counts from torchvision's documentation.
  const std::pair<const char*, int64_t> published[] = {
      {"resnet18", 11'689'512},    {"resnet50", 25'557'032},          {"resnext101_32x8d", 88'791'336},  {"wide_resnet50_2", 68'883'240},
      {"mobilenet_v2", 3'504'872}, {"mobilenet_v3_large", 5'483'032}, {"mobilenet_v3_small", 2'542'856}, {"vgg16", 138'357'544}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(specs_of(default_model(name), Mode::kEvaluation)), count) << name;
}

TEST(Zoo, EvaluationHasTheSameParameters) {
  for (const char* name : {"mlp", "cnn", "cifar_resnet20", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "vgg11_bn"}) {
    const auto training = specs_of(default_model(name), Mode::kTraining), evaluation = specs_of(default_model(name), Mode::kEvaluation);
    ASSERT_EQ(training.size(), evaluation.size()) << name;
    for (size_t i = 0; i < training.size(); ++i) EXPECT_EQ(training[i].name, evaluation[i].name);
  }
}

TEST(Zoo, UnknownModelNamesTheNearest) {
  try {
    default_model("resnet5O");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.suggestion().find("resnet50"), std::string::npos) << error.suggestion();
  }
}

TEST(Zoo, MakeDivisibleNeverLosesATenth) {
  // Values of torchvision's _make_divisible.
  EXPECT_EQ(make_divisible(16, 8), 16);
  EXPECT_EQ(make_divisible(16 * 0.35, 8), 8);
  EXPECT_EQ(make_divisible(24 * 0.75, 8), 24);  // 18 would round to 16, which is less than 90 % of it
  EXPECT_EQ(make_divisible(19, 8), 24);
  EXPECT_EQ(make_divisible(20, 8), 24);
  EXPECT_EQ(make_divisible(3, 8), 8);
  for (int64_t channels = 1; channels < 500; ++channels)
    EXPECT_GE(static_cast<double>(make_divisible(static_cast<double>(channels), 8)), 0.9 * static_cast<double>(channels));
}

}  // namespace
}  // namespace galley
