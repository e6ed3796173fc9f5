// Files of PyTorch's exporter and of ONNX Runtime's quantizer (tests/golden/onnx): as models they compute the results of PyTorch and ONNX
// Runtime; as weights they have a model's names. Files that Galley does not support are rejected with node, operator and reason.

#include <gtest/gtest.h>

#include <fstream>

#include "libcore/base/error.h"
#include "libcore/weights/load.h"
#include "libcore/weights/weights_file.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/onnx/records.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using namespace onnx_records;

const std::string kGolden = GALLEY_SOURCE_DIR "/tests/golden/onnx/";

Captured read_model(const std::string& path, const Tensor& input, Mode mode = Mode::kEvaluation) {
  return capture(onnx_component(path), input.shape(), input.dtype(), mode);
}
Tensor compute(const std::string& path, const Tensor& input) { return compute(read_model(path, input), input); }

TEST(OnnxGolden, ComputesWhatPyTorchComputed) {
  const SafetensorsFile expected(kGolden + "expected.safetensors");
  for (const char* name : {"cnn_folded", "cnn_named", "transformer", "recurrent"}) {
    const double difference =
        largest_difference(compute(cat(kGolden, name, ".onnx"), expected.read(cat(name, ".input"))), expected.read(cat(name, ".output")));
    EXPECT_TRUE(difference <= 2e-6) << name << ": " << difference;  // float32 rounding of values near 1
  }
}

TEST(OnnxGolden, ComputesWhatTheQuantizedFileSays) {
  const SafetensorsFile expected(kGolden + "expected.safetensors");
  const double difference =
      largest_difference(compute(kGolden + "cnn_qdq.onnx", expected.read("cnn_qdq.input")), expected.read("cnn_qdq.output"));
  // One step of the output's scale, if a value is halfway between two levels.
  EXPECT_TRUE(difference <= 0.0089) << difference;
  const double exact = largest_difference(expected.read("cnn_qdq.output"), expected.read("cnn_folded.output"));
  EXPECT_GT(exact, 0.0089) << "this test does not see the rounding";
}

TEST(OnnxGolden, AFileOfOpenBatchTakesAnother) {
  const SafetensorsFile expected(kGolden + "expected.safetensors");
  const Tensor input = expected.read("transformer.input"), output = expected.read("transformer.output");
  Tensor twice(DType::kF32, {6, 3, 16, 16});
  std::vector<double> values = input.to_doubles();
  values.insert(values.end(), values.begin(), values.begin() + input.elements());
  twice.from_doubles(values);
  const Tensor made = compute(kGolden + "transformer.onnx", twice);
  ASSERT_EQ(made.shape(), Shape({6, 5}));
  const std::vector<double> rows = made.to_doubles(), sample = output.to_doubles();
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i], sample[i % sample.size()], 2e-6);
}

TEST(OnnxGolden, InitializersAreWeights) {
  const WeightsFile named(kGolden + "cnn_named.onnx");
  EXPECT_EQ(named.format(), "ONNX");
  EXPECT_FALSE(named.verify().complete());
  const std::vector<ExpectedTensor> model{
      {"conv1.weight", DType::kF32, {8, 3, 3, 3}}, {"bn1.running_var", DType::kF32, {8}}, {"fc.bias", DType::kF32, {10}}};
  const LoadRule rule{.from = kGolden + "cnn_named.onnx", .strict = false};
  const LoadedWeights loaded = load_weights(model, std::span(&rule, 1));
  EXPECT_EQ(loaded.tensors.size(), 3u);
  for (const double value : loaded.tensors.at("bn1.running_var").to_doubles()) EXPECT_TRUE(value >= 0.7 && value <= 1.3) << value;

  const LoadRule folded{.from = kGolden + "cnn_folded.onnx"};
  try {
    load_weights(model, std::span(&folded, 1));
    ADD_FAILURE() << "a folded file was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.message().find("bn1.running_var"), std::string::npos) << error.message();
    EXPECT_NE(error.suggestion().find("do_constant_folding=False"), std::string::npos) << error.suggestion();
    EXPECT_NE(error.suggestion().find("type: onnx"), std::string::npos) << error.suggestion();
  }
}

TEST(OnnxGolden, TrainsByItsParameters) {
  const Tensor input(DType::kF32, {4, 3, 18, 16});
  const Captured named = read_model(kGolden + "cnn_named.onnx", input, Mode::kTraining);
  std::map<std::string, const ParameterSpec*> specs;
  for (const ParameterSpec& spec : named.parameters) specs[spec.name] = &spec;
  for (const char* name : {"conv1.weight", "bn1.weight", "bn1.bias", "gate.1.bias", "fc.weight"}) {
    ASSERT_TRUE(specs.contains(name)) << name;
    EXPECT_EQ(specs[name]->role, ValueRole::kParameter);
  }
  for (const char* name : {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"}) {
    ASSERT_TRUE(specs.contains(name)) << name;
    EXPECT_EQ(specs[name]->role, ValueRole::kBuffer);
  }
  EXPECT_THROW(read_model(kGolden + "cnn_qdq.onnx", input, Mode::kTraining), Error);  // rounding has no gradient
}

// ---- rejected files

void expect_refused(const std::string& graph, std::initializer_list<std::string_view> reasons, const std::string& rest = "",
                    int64_t opset = 17) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  std::ofstream(path, std::ios::binary) << model(graph, opset) << rest;
  try {
    read_model(path, Tensor(DType::kF32, {2, 3}));
    ADD_FAILURE() << "accepted, instead of " << *reasons.begin();
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kInput || error.code() == ErrorCode::kRecipe) << error.message();
    for (const std::string_view reason : reasons)
      EXPECT_NE((error.message() + error.suggestion()).find(reason), std::string::npos) << error.message() << "\nis to name: " << reason;
  }
}

TEST(OnnxRefusals, NameNodeOperatorAndCause) {
  const std::string relu = node("Relu", in("h"), out("y")), product = node("MatMul", in("x") + in("w"), out("h"));
  {
    const TemporaryFolder folder;
    std::ofstream(folder / "m.onnx", std::ios::binary) << model(small_graph());
    EXPECT_EQ(compute(folder / "m.onnx", Tensor(DType::kF32, {2, 3})).shape(),
              Shape({2, 2}));  // the valid graph from which the cases are derived
  }
  expect_refused(relu + product + weight() + ends(), {"Relu 'y'", "'h'", "later node"});                  // unsorted
  expect_refused(node("Add", in("x") + in("y"), out("h")) + relu + ends(), {"Add 'h'", "'y'", "cycle"});  // cyclic
  expect_refused(product + relu + ends(), {"MatMul 'h'", "'w'", "no node"});                              // missing initializer
  expect_refused(product + relu + initializer(tensor("w", number(1, 2) + number(1, 2), 1, std::string(16, '\0'))) + ends(),
                 {"MatMul 'h'", "input features"});
  expect_refused(product + relu + initializer(tensor("w", number(1, 3) + number(1, 2), 10, std::string(12, '\0'))) + ends(),
                 {"MatMul 'h'", "float32"});
  expect_refused(product + relu + initializer(tensor("w", number(1, 3) + number(1, 2), 12, std::string(24, '\0'))) + ends(),
                 {"MatMul 'h'", "'w'"});
  expect_refused(node("NonMaxSuppression", in("x"), out("y"), bytes(3, "a/b")) + ends(),
                 {"NonMaxSuppression 'a/b'", "does not support this operator", "opset 17"});
  expect_refused(node("Relu", in("x"), out("y"), bytes(7, "com.microsoft")) + ends(), {"com.microsoft.Relu", "domain"});
  expect_refused(node("Relu", in("x"), out("y"), bytes(5, bytes(1, "alpha") + number(3, 1) + number(20, 2))) + ends(),
                 {"Relu 'y'", "attribute 'alpha' is not supported"});
  expect_refused(node("If", in("x"), out("y"), bytes(5, bytes(1, "then_branch") + bytes(6, bytes(2, "g")) + number(20, 5))) + ends(),
                 {"If 'y'", "'then_branch'", "a subgraph"});
  expect_refused(small_graph(), {"opset 6", "7 to 21"}, "", 6);
  expect_refused(small_graph(), {"opset 22", "7 to 21"}, "", 22);
  expect_refused(small_graph(), {"functions"}, bytes(25, bytes(1, "f")));
  expect_refused(product + relu + relu + weight() + ends(), {"two nodes produce 'y'"});
  // Sizes that are not valid in shapes.
  const auto reshape_to = [](int64_t to) {
    return node("Reshape", in("x") + in("s"), out("y")) +
           initializer(tensor("s", number(1, 1), 7, std::string(reinterpret_cast<const char*>(&to), 8))) + ends();
  };
  expect_refused(reshape_to(INT64_MIN), {"Reshape 'y'"});
  expect_refused(reshape_to(INT64_MAX), {"Reshape 'y'"});
  expect_refused(reshape_to(7), {"Reshape 'y'", "elements"});
  expect_refused(node("Transpose", in("x"), out("y"), bytes(5, bytes(1, "perm") + number(8, 0) + number(8, 5) + number(20, 7))) + ends(),
                 {"Transpose 'y'", "permutation"});
  expect_refused(node("Softmax", in("x"), out("y"), bytes(5, bytes(1, "axis") + number(3, INT64_MAX) + number(20, 2))) + ends(),
                 {"Softmax 'y'", "axis"});
}

}  // namespace
}  // namespace galley
