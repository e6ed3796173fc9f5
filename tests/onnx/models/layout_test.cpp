// Inputs and outputs of a file: names, the batch, and the forms of operators in each opset.

#include <gtest/gtest.h>

#include <fstream>

#include "libcore/base/error.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/onnx/records.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using namespace onnx_records;

/// A file with that graph in its own folder.
class File {
 public:
  explicit File(const std::string& graph, int64_t opset = 17) { std::ofstream(path(), std::ios::binary) << model(graph, opset); }
  std::string path() const { return folder_ / "m.onnx"; }

 private:
  TemporaryFolder folder_;
};

std::map<std::string, Tensor> outputs_of(const std::string& graph, const std::vector<Tensor>& inputs, int64_t opset = 17,
                                         const OnnxChoice& choice = {}) {
  const File file(graph, opset);
  return compute_outputs(onnx_component(file.path(), choice), inputs);
}

/// The message of what `run` throws.
template <class Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.text();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}
void expect_words(const std::string& text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) EXPECT_NE(text.find(word), std::string::npos) << text << "\nmust contain: " << word;
}

// ---- several inputs and outputs

std::string two_and_two() {
  return node("Add", in("left") + in("right"), out("sum")) + node("Sub", in("left") + in("right"), out("difference")) +
         input(value("left", size(3))) + input(value("right", size(3))) + output(value("sum", size(3))) +
         output(value("difference", size(3)));
}

TEST(OnnxInputs, HaveTheFilesNames) {
  const File file(two_and_two());
  const ModelInfo info = model_info(onnx_component(file.path()));
  ASSERT_EQ(info.all_inputs().size(), 2u);
  EXPECT_EQ(info.all_inputs()[0].name, "left");
  EXPECT_EQ(info.all_inputs()[1].name, "right");
  EXPECT_TRUE(info.named_outputs);
  EXPECT_EQ(info.fixed_batch, 0);
  const auto results = compute_outputs(onnx_component(file.path()), {Tensor::of({1, 3}, {5, 7, 9}), Tensor::of({1, 3}, {1, 2, 4})});
  EXPECT_EQ(results.at("sum").to_doubles(), (std::vector<double>{6, 9, 13}));
  EXPECT_EQ(results.at("difference").to_doubles(), (std::vector<double>{4, 5, 5}));
}

TEST(OnnxInputs, OutputsAreChosenByName) {
  const OnnxChoice choice{.outputs = {"difference"}};
  const auto results = outputs_of(two_and_two(), {Tensor::of({1, 3}, {5, 7, 9}), Tensor::of({1, 3}, {1, 2, 4})}, 17, choice);
  EXPECT_EQ(results.size(), 1u);
  const File named(two_and_two());
  EXPECT_TRUE(model_info(onnx_component(named.path(), choice)).named_outputs) << "one, and its name was requested";
  EXPECT_EQ(results.at("difference").to_doubles(), (std::vector<double>{4, 5, 5}));
  const File file(two_and_two());
  expect_words(error_of([&] { model_info(onnx_component(file.path(), {.outputs = {"quotient"}})); }), {"quotient", "sum, difference"});
  expect_words(error_of([&] { model_info(onnx_component(file.path(), {.inputs = {{"up", {3}}}})); }), {"'up'", "left, right"});
  // Nodes that no selected output needs may be anything.
  const std::string unknown = two_and_two() + node("NonMaxSuppression", in("left"), out("boxes")) + output(value("boxes", size(3)));
  EXPECT_EQ(outputs_of(unknown, {Tensor::of({1, 3}, {5, 7, 9}), Tensor::of({1, 3}, {1, 2, 4})}, 17, choice).size(), 1u);
  const File refused(unknown);
  expect_words(
      error_of([&] { compute_outputs(onnx_component(refused.path()), {Tensor(DType::kF32, {1, 3}), Tensor(DType::kF32, {1, 3})}); }),
      {"NonMaxSuppression"});
}

// ---- the first dimension

/// x [2,3,4,5] by one node.
std::string of_four(const std::string& node, std::initializer_list<int64_t> result) {
  return node + input(fixed("x", {2, 3, 4, 5})) + output(fixed("y", result));
}

TEST(OnnxBatch, ModelsThatMixTheFirstDimensionRunWhole) {
  const File file(of_four(node("Flatten", in("x"), out("y"), integer("axis", 2)), {6, 20}));
  const ModelInfo info = model_info(onnx_component(file.path()));
  EXPECT_EQ(info.input_shape, (std::vector<int64_t>{2, 3, 4, 5})) << "a sample is all of the input";
  EXPECT_EQ(info.fixed_batch, 1);
  EXPECT_EQ(compute_outputs(onnx_component(file.path()), {numbers({1, 2, 3, 4, 5})}).at("y").shape(), Shape({1, 6, 20}));
  expect_words(error_of([&] { compute_outputs(onnx_component(file.path()), {numbers({2, 2, 3, 4, 5})}); }),
               {"one sample per run", "batch has 2", "one row for each sample", "set the batch to 1"});
}

TEST(OnnxBatch, RowsAreSamplesWhereNoNodeMixesThem) {
  struct Form {
    const char* name;
    std::string graph;
    bool rows;
  };
  const auto reduce = [](std::initializer_list<int64_t> axes) {
    return node("ReduceMean", in("x"), out("y"), integer_list("axes", axes) + integer("keepdims", 1));
  };
  const std::vector<Form> forms{
      {"element by element", of_four(node("Relu", in("x"), out("y")), {2, 3, 4, 5}), true},
      {"mean of pixels", of_four(reduce({2, 3}), {2, 3, 1, 1}), true},
      {"mean of samples", of_four(reduce({0}), {1, 3, 4, 5}), false},
      {"softmax of samples", of_four(node("Softmax", in("x"), out("y"), integer("axis", 0)), {2, 3, 4, 5}), false},
      {"samples turned to the end", of_four(node("Transpose", in("x"), out("y"), integer_list("perm", {1, 2, 3, 0})), {3, 4, 5, 2}), false},
      {"there and back",
       of_four(node("Transpose", in("x"), out("t"), integer_list("perm", {1, 2, 3, 0})) +
                   node("Transpose", in("t"), out("y"), integer_list("perm", {3, 0, 1, 2})),
               {2, 3, 4, 5}),
       true},
      {"rows of windows",
       of_four(node("Reshape", in("x") + in("s"), out("r")) + node("Relu", in("r"), out("t")) +
                   node("Reshape", in("t") + in("b"), out("y")) + integers("s", {-1, 20}) + integers("b", {2, 3, 4, 5}),
               {2, 3, 4, 5}),
       true},
      {"halves of the batch", of_four(node("Split", in("x"), out("y") + out("z"), integer("axis", 0)), {1, 3, 4, 5}), false},
      {"products of samples with each other",
       of_four(node("Flatten", in("x"), out("f")) + node("Gemm", in("f") + in("f"), out("y"), integer("transB", 1)), {2, 2}), false},
  };
  for (const Form& form : forms) {
    const File file(form.graph, 13);
    const ModelInfo info = model_info(onnx_component(file.path()));
    EXPECT_EQ(info.input_shape.size(), form.rows ? 3u : 4u) << form.name;
    if (!form.rows) continue;
    // Three samples together, and each alone.
    const Tensor three = numbers({3, 3, 4, 5});
    const std::vector<double> all = compute_outputs(onnx_component(file.path()), {three}).at("y").to_doubles();
    for (size_t n = 0; n < 3; ++n) {
      Tensor one(DType::kF32, {1, 3, 4, 5});
      const std::vector<double> values = three.to_doubles();
      one.from_doubles({values.begin() + static_cast<int64_t>(60 * n), values.begin() + static_cast<int64_t>(60 * n + 60)});
      const std::vector<double> alone = compute_outputs(onnx_component(file.path()), {one}).at("y").to_doubles();
      for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(alone[i], all[n * alone.size() + i], 1e-6) << form.name;
    }
  }
}

TEST(OnnxBatch, SizesThatSpellTheBatchFixIt) {
  // A table of two different rows is added to two samples: valid for no other batch.
  const std::string table =
      of_four(node("Add", in("x") + in("w"), out("y")) +
                  initializer(tensor("w", number(1, 2) + number(1, 1) + number(1, 1) + number(1, 1), 1, float_bytes(1) + float_bytes(2))),
              {2, 3, 4, 5});
  const File file(table);
  EXPECT_EQ(model_info(onnx_component(file.path())).input_shape.size(), 4u) << "the position of a sample changes its result";
  // Concatenated with two equal rows: samples are independent, in batches of two.
  const std::string rows = node("Expand", in("w") + in("s"), out("r")) + node("Concat", in("x") + in("r"), out("y"), integer("axis", 1)) +
                           reals("w", {1, 2, 3}) + integers("s", {2, 3}) + input(fixed("x", {2, 4})) + output(fixed("y", {2, 7}));
  const File joined(rows);
  EXPECT_EQ(model_info(onnx_component(joined.path())).fixed_batch, 2);
  EXPECT_EQ(compute_outputs(onnx_component(joined.path()), {numbers({2, 4})}).at("y").shape(), Shape({2, 7}));
  expect_words(error_of([&] { compute_outputs(onnx_component(joined.path()), {numbers({3, 4})}); }),
               {"batches of 2 samples", "this batch has 3", "set the batch to 2"});
}

TEST(OnnxBatch, OpenSizesOfAWholeRunAreAskedFor) {
  const std::string sums = node("CumSum", in("x") + in("axis"), out("y")) + initializer(tensor("axis", "", 7, std::string(8, '\0'))) +
                           input(value("x", size(3))) + output(value("y", size(3)));
  const File file(sums);
  expect_words(error_of([&] { model_info(onnx_component(file.path())); }),
               {"leaves dimension 0", "'x' [N,3]", "along the sample axis", "model.shape", "2 sizes"});
  const ModelInfo info = model_info(onnx_component(file.path(), {.shape = {4, 3}}));
  EXPECT_EQ(info.input_shape, (std::vector<int64_t>{4, 3}));
  const auto results =
      compute_outputs(onnx_component(file.path(), {.shape = {4, 3}}), {Tensor::of({1, 4, 3}, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4})});
  EXPECT_EQ(results.at("y").to_doubles(), (std::vector<double>{1, 1, 1, 3, 3, 3, 6, 6, 6, 10, 10, 10}));
}

// ---- constants

/// An int64 initializer of that shape, and a double.
std::string table(std::string_view name, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> values) {
  std::string sizes, raw;
  for (const int64_t size : shape) sizes += number(1, size);
  for (const int64_t value : values) raw += std::string(reinterpret_cast<const char*>(&value), 8);
  return initializer(tensor(name, sizes, 7, raw));
}
std::string real64(std::string_view name, double value) {
  return initializer(tensor(name, "", 11, std::string(reinterpret_cast<const char*>(&value), 8)));
}
/// The output "y" of nodes that do not read the input. A sample is a whole run.
Tensor known_output(const std::string& nodes) {
  const std::string graph =
      nodes + node("Relu", in("x"), out("z")) + input(fixed("x", {2, 3})) + output(fixed("z", {2, 3})) + output(fixed("y", {}));
  return outputs_of(graph, {numbers({1, 2, 3})}).at("y");
}

TEST(OnnxKnown, SqueezeAndUnsqueezeChangeTheNamedAxesAlone) {
  const auto unsqueeze = [](std::string_view result, std::initializer_list<int64_t> axes) {
    return reals("k", {7}, true) + integers("a", axes) + node("Unsqueeze", in("k") + in("a"), out(result));
  };
  const auto squeeze = [&](std::initializer_list<int64_t> axes) {
    return unsqueeze("u", {0, 1}) + integers("b", axes) + node("Squeeze", in("u") + in("b"), out("y"));
  };
  EXPECT_EQ(known_output(unsqueeze("y", {0})).shape(), Shape({1, 1}));
  EXPECT_EQ(known_output(unsqueeze("y", {0, 1})).shape(), Shape({1, 1, 1}));
  EXPECT_EQ(known_output(squeeze({0})).shape(), Shape({1, 1}));
  EXPECT_EQ(known_output(squeeze({0, -1})).shape(), Shape({1}));
  EXPECT_EQ(known_output(unsqueeze("u", {0, 1}) + node("Squeeze", in("u"), out("y"))).shape(), Shape({1}));
  EXPECT_EQ(known_output(squeeze({0})).to_doubles(), std::vector<double>{7});
  expect_words(error_of([&] { known_output(unsqueeze("y", {1})); }), {"Unsqueeze 'y'", "axis 1", "rank 1"});
  expect_words(error_of([&] { known_output(unsqueeze("y", {0, 0})); }), {"Unsqueeze 'y'", "repeated"});
  expect_words(error_of([&] { known_output(squeeze({2})); }), {"Squeeze 'y'", "axis 2", "rank 2"});
  expect_words(error_of([&] { known_output(integers("k", {1, 2}) + integers("a", {0}) + node("Squeeze", in("k") + in("a"), out("y"))); }),
               {"Squeeze 'y'", "axis 0 of [2]", "must have size 1"});
}

TEST(OnnxKnown, FractionsAreTrueAndLoseTheirPartAsIntegers) {
  const auto cast = [](float value, int64_t type) {
    return known_output(reals("k", {value}, true) + node("Cast", in("k"), out("c"), integer("to", type)) +
                        node("Cast", in("c"), out("y"), integer("to", 1)))
        .to_doubles();
  };
  constexpr int64_t kBool = 9, kInt64 = 7;
  EXPECT_EQ(cast(0.5f, kBool), std::vector<double>{1});
  EXPECT_EQ(cast(-0.25f, kBool), std::vector<double>{1});
  EXPECT_EQ(cast(0, kBool), std::vector<double>{0});
  EXPECT_EQ(cast(0.5f, kInt64), std::vector<double>{0});
  EXPECT_EQ(cast(-1.5f, kInt64), std::vector<double>{-1});
}

TEST(OnnxKnown, RangesThatHaveNoEndAreRefused) {
  const auto range = [](double start, double limit, double step) {
    return real64("a", start) + real64("b", limit) + real64("c", step) + node("Range", in("a") + in("b") + in("c"), out("y"));
  };
  expect_words(error_of([&] { known_output(range(1e308, -1e308, 1)); }), {"Range 'y'", "numbers, but at most"});
  expect_words(error_of([&] { known_output(range(-1e308, 1e308, 1)); }), {"Range 'y'", "numbers, but at most"});
}

TEST(OnnxIndices, NegativeOnesNameElementsFromTheEnd) {
  const auto scatter = [](std::initializer_list<int64_t> at) {
    return outputs_of(table("i", {2, 1}, at) + reals("u", {5, 6}) + node("ScatterND", in("x") + in("i") + in("u"), out("y")) +
                          input(fixed("x", {4})) + output(fixed("y", {4})),
                      {Tensor::of({1, 4}, {1, 2, 3, 4})})
        .at("y")
        .to_doubles();
  };
  EXPECT_EQ(scatter({-1, 2}), (std::vector<double>{1, 2, 6, 5}));
  expect_words(error_of([&] { scatter({-1, 3}); }), {"ScatterND 'y'", "an element twice"});
  expect_words(error_of([&] { scatter({0, 4}); }), {"ScatterND 'y'", "index 4", "4 elements"});
  expect_words(error_of([&] { scatter({0, -5}); }), {"ScatterND 'y'", "index -5", "4 elements"});
}

TEST(OnnxIndices, NegativeOnesOfABatchCountFromTheEnd) {
  Tensor index(DType::kI64, {2, 2});
  index.from_doubles({0, -1, -4, 3});
  const std::string at = input(fixed("i", {2, 2}, 7)), pairs = output(fixed("y", {2, 2}));
  const auto values_of = [](const std::string& graph, const std::vector<Tensor>& inputs) {
    return outputs_of(graph, inputs).at("y").to_doubles();
  };
  EXPECT_EQ(values_of(input(fixed("x", {2, 4})) + at + node("GatherElements", in("x") + in("i"), out("y"), integer("axis", 1)) + pairs,
                      {Tensor::of({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), index}),
            (std::vector<double>{1, 4, 5, 8}));
  const std::string gather = at + node("Gather", in("t") + in("i"), out("y"));
  EXPECT_EQ(values_of(reals("t", {1, 2, 3, 4}) + gather + pairs, {index}), (std::vector<double>{1, 4, 1, 4}));
  // The rows of a weight are those of tokens: a negative one is a mistake in the data.
  const std::string weight = initializer(tensor("t", number(1, 4) + number(1, 1), 1, std::string(16, '\0')));
  expect_words(error_of([&] { values_of(weight + gather + output(fixed("y", {2, 2, 1})), {index}); }), {"index -1", "4 rows"});
}

TEST(OnnxSizes, ProductsThatOverflowAreRefused) {
  constexpr int64_t kSize = int64_t{1} << 40, kCount = int64_t{1} << 24;
  const auto tile = [](std::initializer_list<int64_t> repeats) {
    const File file(integers("r", repeats) + node("Tile", in("x") + in("r"), out("y")) + input(fixed("x", {1, kSize})) +
                    output(fixed("y", {1, kSize})));
    capture(onnx_component(file.path(), {.shape = {1, kSize}}), {1, 1, kSize});
  };
  expect_words(error_of([&] { tile({1, kCount}); }), {"Tile 'y'", "repeats axis 1 of f32 [1,1099511627776] 16777216 times"});
  expect_words(error_of([&] { tile({kCount, 1}); }), {"Tile 'y'", "too large"});
  // An empty tensor whose other sizes have an overflowing product.
  expect_words(error_of([&] { known_output(integers("s", {0, kSize, kSize}) + node("ConstantOfShape", in("s"), out("y"))); }),
               {"ConstantOfShape 'y'", "too large"});
}

// ---- versions

/// The same operator in an old and in a new form; both must agree.
struct Forms {
  const char* name;
  int64_t old_opset;
  std::string old_form;
  int64_t new_opset;
  std::string new_form;
};

TEST(OnnxVersions, OldAndNewFormsAreTheSame) {
  const std::string ends = input(value("x", size(3) + size(4))) + output(value("y", size(3) + size(4)));
  const auto one = [](std::string_view op, const std::string& attributes, const std::string& inputs = "") {
    return node(op, in("x") + inputs, out("y"), attributes);
  };
  const std::vector<Forms> all{
      {"Unsqueeze", 11, one("Unsqueeze", integer_list("axes", {1})), 13, one("Unsqueeze", "", in("a")) + integers("a", {1})},
      {"Squeeze", 11,
       node("Unsqueeze", in("x"), out("u"), integer_list("axes", {-1})) + node("Squeeze", in("u"), out("y"), integer_list("axes", {-1})),
       13, node("Unsqueeze", in("x") + in("a"), out("u")) + node("Squeeze", in("u") + in("a"), out("y")) + integers("a", {-1})},
      {"Clip", 7, one("Clip", real("min", -0.5f) + real("max", 0.25f)), 11,
       one("Clip", "", in("a") + in("b")) + reals("a", {-0.5f}, true) + reals("b", {0.25f}, true)},
      {"Pad", 7, one("Pad", integer_list("pads", {0, 1, 2, 0, 0, 3}) + real("value", 0.5f)), 13,
       one("Pad", "", in("a") + in("b")) + integers("a", {0, 1, 2, 0, 0, 3}) + reals("b", {0.5f}, true)},
      {"Pad of an axis", 11, one("Pad", "", in("a")) + integers("a", {0, 0, 1, 0, 0, 2}), 18,
       one("Pad", "", in("a") + in("") + in("c")) + integers("a", {1, 2}) + integers("c", {2})},
      {"Slice", 7, one("Slice", integer_list("starts", {1, 0}) + integer_list("ends", {3, 2}) + integer_list("axes", {1, 2})), 13,
       one("Slice", "", in("a") + in("b") + in("c")) + integers("a", {1, 0}) + integers("b", {3, 2}) + integers("c", {1, 2})},
      {"ReduceSum", 11, one("ReduceSum", integer_list("axes", {2}) + integer("keepdims", 0)), 13,
       one("ReduceSum", integer("keepdims", 0), in("a")) + integers("a", {2})},
      {"ReduceMean", 13, one("ReduceMean", integer_list("axes", {1, 2})), 18, one("ReduceMean", "", in("a")) + integers("a", {1, 2})},
      {"ReduceL2", 13, one("ReduceL2", integer_list("axes", {1})), 18, one("ReduceL2", "", in("a")) + integers("a", {1})},
      {"Split", 11, node("Split", in("x"), out("z") + out("y"), integer("axis", 1) + integer_list("split", {1, 2})), 13,
       node("Split", in("x") + in("a"), out("z") + out("y"), integer("axis", 1)) + integers("a", {1, 2})},
      {"Split by number", 13, node("Split", in("x"), out("z") + out("y"), integer("axis", 2)), 18,
       node("Split", in("x"), out("z") + out("y"), integer("axis", 2) + integer("num_outputs", 2))},
      {"TopK", 9, node("TopK", in("x"), out("y") + out("i"), integer("k", 2)), 11,
       node("TopK", in("x") + in("a"), out("y") + out("i")) + integers("a", {2})},
      {"Dropout", 7, one("Dropout", real("ratio", 0.25f)), 12, one("Dropout", "", in("a")) + reals("a", {0.25f}, true)},
      {"Softmax of the last axis", 11, one("Softmax", integer("axis", 2)), 13, one("Softmax", "")},
      {"Softmax of all axes", 11, one("Softmax", ""), 13,
       node("Flatten", in("x"), out("f")) + node("Softmax", in("f"), out("g")) + node("Reshape", in("g") + in("s"), out("y")) +
           integers("s", {-1, 3, 4})},
      {"LogSoftmax of all axes", 12, one("LogSoftmax", integer("axis", 1)), 13,
       node("Flatten", in("x"), out("f")) + node("LogSoftmax", in("f"), out("g")) + node("Reshape", in("g") + in("s"), out("y")) +
           integers("s", {-1, 3, 4})},
      {"Upsample", 7, one("Upsample", text("mode", "nearest") + real_list("scales", {1.f, 2.f, 3.f})), 9,
       one("Upsample", "", in("a")) + reals("a", {1, 2, 3})},
      {"Resize", 10, one("Resize", text("mode", "linear"), in("a")) + reals("a", {1, 2, 1.5f}), 13,
       one("Resize", text("mode", "linear") + text("coordinate_transformation_mode", "asymmetric"), in("") + in("a")) +
           reals("a", {1, 2, 1.5f})},
  };
  for (const Forms& forms : all) {
    const Tensor x = numbers({2, 3, 4});
    const Tensor before = outputs_of(forms.old_form + ends, {x}, forms.old_opset).at("y"),
                 now = outputs_of(forms.new_form + ends, {x}, forms.new_opset).at("y");
    EXPECT_EQ(before.shape(), now.shape()) << forms.name;
    EXPECT_EQ(before.to_doubles(), now.to_doubles()) << forms.name;
    EXPECT_NE(before.to_doubles(), std::vector<double>(static_cast<size_t>(before.elements()), 0)) << forms.name;
  }
}

TEST(OnnxVersions, BatchNormOfEachPixelIsRefused) {
  const std::string graph = node("BatchNormalization", in("x") + in("a") + in("a") + in("a") + in("a"), out("y"), integer("spatial", 0)) +
                            reals("a", {1, 1, 1}) + input(value("x", size(3) + size(4))) + output(value("y", size(3) + size(4)));
  expect_words(error_of([&] { outputs_of(graph, {numbers({2, 3, 4})}, 7); }), {"BatchNormalization 'y'", "spatial=0"});
}

}  // namespace
}  // namespace galley
