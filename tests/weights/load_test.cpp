// Laws: the rules ignore, rename, into and strict match exactly the tensors they name; every mismatch is one error (exit code 4) that shows
// both sides and whose rename block, applied, fixes it; no dtype changes silently; NaN is rejected with the tensor's name.
#include "libcore/weights/load.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/weights/checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

Tensor filled(Shape shape, double value, DType dtype = DType::kF32) {
  Tensor tensor(dtype, shape);
  tensor.from_doubles(std::vector<double>(static_cast<size_t>(shape.elements()), value));
  return tensor;
}

std::string error_of(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules, ErrorCode code = ErrorCode::kInput) {
  try {
    load_weights(model, rules);
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.text();
    return error.text();
  }
  return "";
}

class Load : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, const std::string& message) { log_ += message + "\n"; });
    path_ = folder_ / "w.safetensors";
  }
  void TearDown() override { set_log_sink({}); }
  void write(std::vector<TensorSource> tensors) { write_safetensors(path_, tensors, {{"galley.pipeline", "p"}}); }
  LoadRule rule() const { return {.from = path_}; }

  const std::vector<ExpectedTensor> model_{
      {"conv1.weight", DType::kF32, {4, 3, 3, 3}},       {"bn1.weight", DType::kF32, {4}},    {"bn1.bias", DType::kF32, {4}},
      {"bn1.num_batches_tracked", DType::kI64, Shape{}}, {"fc.weight", DType::kF32, {10, 4}}, {"fc.bias", DType::kF32, {10}}};
  /// All of the model's tensors except the counter, under `prefix`.
  std::vector<TensorSource> tensors(const std::string& prefix) const {
    std::vector<TensorSource> sources;
    double value = 1;
    for (const ExpectedTensor& tensor : model_) {
      if (tensor.dtype == DType::kF32) sources.emplace_back(prefix + tensor.name, filled(tensor.shape, value++));
    }
    return sources;
  }

  TemporaryFolder folder_;
  std::string path_;
  std::string log_;
};

/// Bytes of a mapped file in this process's memory.
int64_t resident_of(const std::string& path) {
  std::istringstream maps(read_file("/proc/self/smaps"));
  int64_t kilobytes = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.ends_with(path);
    if (inside && line.starts_with("Rss:")) kilobytes += std::stoll(line.substr(4));
  }
  return 1024 * kilobytes;
}

TEST_F(Load, OneTensorAtATimeIsInMemory) {
  constexpr int64_t kRows = 1 << 10;
  const Shape shape{kRows, 1 << 10};
  std::vector<ExpectedTensor> model;
  std::vector<TensorSource> sources;
  for (int i = 0; i < 6; ++i) {
    model.push_back({cat("layer", i), DType::kF32, shape});
    sources.emplace_back(cat("layer", i), filled(shape, i + 1));
  }
  model.push_back({"kept", DType::kF32, {3}});
  write(sources);
  LoadRule loose = rule();
  loose.strict = false;
  int64_t most = 0;
  std::vector<std::pair<std::string, double>> taken;
  const std::vector<std::string> kept =
      load_each_weight(model, std::vector{loose}, [&](const ExpectedTensor& tensor, const Tensor& values) {
        taken.emplace_back(tensor.name, values.at({kRows - 1, 5}));
        most = std::max(most, resident_of(path_));
      });
  EXPECT_EQ(kept, std::vector<std::string>{"kept"});
  ASSERT_EQ(taken.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(taken[static_cast<size_t>(i)], std::pair(cat("layer", i), i + 1.0));
  EXPECT_GE(most, shape.elements() * 4);
  EXPECT_LT(most, shape.elements() * 4 * 3 / 2);
}

TEST_F(Load, ExactFit) {
  write(tensors(""));
  const LoadedWeights loaded = load_weights(model_, std::vector{rule()});
  EXPECT_EQ(loaded.tensors.size(), 5u);
  EXPECT_EQ(loaded.tensors.at("fc.bias").at({9}), 5);
  EXPECT_EQ(loaded.kept, std::vector<std::string>{"bn1.num_batches_tracked"}) << "a missing batch counter is not a mismatch";
  EXPECT_FALSE(loaded.tensors.at("conv1.weight").storage()->writable()) << "mapped, not copied";
  EXPECT_EQ(read_weights_metadata(path_).at("galley.pipeline"), "p");
}

TEST_F(Load, NamesOfOlderDetectors) {
  // Names of torchvision before 0.13, and the present ones (the _load_from_state_dict of its modules).
  const std::pair<std::string, std::string> kNames[] = {
      {"rpn.head.conv.weight", "rpn.head.conv.0.0.weight"},
      {"backbone.fpn.inner_blocks.2.bias", "backbone.fpn.inner_blocks.2.0.bias"},
      {"backbone.fpn.layer_blocks.0.weight", "backbone.fpn.layer_blocks.0.0.weight"},
      {"head.classification_head.conv.6.weight", "head.classification_head.conv.3.0.weight"},
      {"head.regression_head.conv.2.bias", "head.regression_head.conv.1.0.bias"},
      {"roi_heads.mask_head.mask_fcn4.weight", "roi_heads.mask_head.3.0.weight"},
      {"head.regression_head.bbox_reg.weight", "head.regression_head.bbox_reg.weight"}};
  std::vector<ExpectedTensor> model;
  std::vector<TensorSource> old_file, new_file;
  double value = 1;
  for (const auto& [old_name, new_name] : kNames) {
    model.push_back({new_name, DType::kF32, {2}});
    old_file.emplace_back(old_name, filled({2}, value));
    new_file.emplace_back(new_name, filled({2}, value++));
  }
  for (const auto& file : {old_file, new_file}) {
    write(file);
    const LoadedWeights loaded = load_weights(model, std::vector{rule()});
    for (size_t i = 0; i < model.size(); ++i)
      EXPECT_EQ(loaded.tensors.at(model[i].name).at({0}), static_cast<double>(i + 1)) << model[i].name;
  }
  // FCOS has convolutions of these names itself.
  write({{"head.classification_head.conv.6.weight", filled({2}, 9)}});
  const std::vector<ExpectedTensor> fcos{{"head.classification_head.conv.6.weight", DType::kF32, {2}}};
  EXPECT_EQ(load_weights(fcos, std::vector{rule()}).tensors.size(), 1u);
  EXPECT_NE(error_of(model, std::vector{rule()}).find("missing"), std::string::npos);
}

TEST_F(Load, RenameIgnoreInto) {
  write(tensors("module."));
  LoadRule prefix = rule();
  prefix.rename = {{"module.", ""}};
  EXPECT_EQ(load_weights(model_, std::vector{prefix}).tensors.size(), 5u);

  LoadRule head = prefix;
  head.ignore = {"fc"};
  const LoadedWeights without_head = load_weights(model_, std::vector{head});
  EXPECT_EQ(without_head.tensors.size(), 3u);
  EXPECT_EQ(without_head.kept, (std::vector<std::string>{"bn1.num_batches_tracked", "fc.weight", "fc.bias"}));

  std::vector<ExpectedTensor> larger{{"head.weight", DType::kF32, {2}}};
  for (ExpectedTensor tensor : model_) {
    tensor.name = "backbone." + tensor.name;
    larger.push_back(tensor);
  }
  LoadRule into = prefix;
  into.into = "backbone";
  const LoadedWeights placed = load_weights(larger, std::vector{into});
  EXPECT_EQ(placed.tensors.size(), 5u);
  EXPECT_EQ(placed.tensors.at("backbone.bn1.bias").at({0}), 3);
  EXPECT_EQ(placed.kept.front(), "head.weight");

  LoadRule star = rule();
  write({{"m.ln.gamma", filled({4}, 7)}, {"m.ln.beta", filled({4}, 8)}});
  star.rename = {{"m.*.gamma", "*.weight"}, {"m.*.beta", "*.bias"}};
  const std::vector<ExpectedTensor> norm{{"ln.weight", DType::kF32, {4}}, {"ln.bias", DType::kF32, {4}}};
  EXPECT_EQ(load_weights(norm, std::vector{star}).tensors.at("ln.bias").at({1}), 8);
}

TEST_F(Load, SeveralFiles) {
  write_safetensors(folder_ / "a", std::vector<TensorSource>{{"x", filled({2}, 1)}}, {});
  write_safetensors(folder_ / "b", std::vector<TensorSource>{{"y", filled({2}, 2)}}, {});
  const std::vector<ExpectedTensor> model{{"x", DType::kF32, {2}}, {"y", DType::kF32, {2}}};
  const LoadRule a{.from = folder_ / "a"}, b{.from = folder_ / "b"};
  EXPECT_EQ(load_weights(model, std::vector{a, b}).tensors.size(), 2u);
  EXPECT_NE(error_of(model, std::vector{a}).find("missing"), std::string::npos);
}

TEST_F(Load, MisfitShowsBothSidesAndTheRenameThatMendsIt) {
  std::vector<TensorSource> sources = tensors("encoder.");
  sources[0] = {"encoder.conv1.weight", filled({4, 3, 7, 7}, 0)};
  write(sources);
  const std::string text = error_of(model_, std::vector{rule()});
  EXPECT_NE(text.find("\"encoder.\": \"\""), std::string::npos) << text;
  EXPECT_NE(text.find("missing"), std::string::npos);
  EXPECT_NE(text.find("unexpected"), std::string::npos);
  LoadRule mended = rule();
  mended.rename = {{"encoder.", ""}};
  const std::string shapes = error_of(model_, std::vector{mended});
  EXPECT_NE(shapes.find("conv1.weight  f32 [4,3,3,3]  f32 [4,3,7,7]"), std::string::npos) << shapes;
  EXPECT_NE(shapes.find("ignore: [\"conv1.weight\"]"), std::string::npos) << shapes;
  EXPECT_EQ(shapes.find("rename:"), std::string::npos) << shapes;
  LoadRule explained = mended;
  explained.difference = [] { return std::string("the weights were trained with model.kernel_size: 7; here it is 3"); };
  const std::string why = error_of(model_, std::vector{explained});
  EXPECT_NE(why.find("\nthe weights were trained with model.kernel_size: 7; here it is 3"), std::string::npos) << why;
  EXPECT_EQ(why.find("ignore:"), std::string::npos) << why;
  explained.difference = [] { return std::string(); };
  EXPECT_EQ(error_of(model_, std::vector{explained}), shapes) << "nothing is known about the file";
  mended.ignore = {"conv1.weight"};
  EXPECT_EQ(load_weights(model_, std::vector{mended}).tensors.size(), 4u);
}

TEST_F(Load, NearNamesWithoutACommonPrefix) {
  std::vector<TensorSource> sources = tensors("");
  sources[3].name = "head.weights";
  sources[4].name = "head.biases";
  write(sources);
  const std::string text = error_of(model_, std::vector{rule()});
  EXPECT_NE(text.find("\"head.weights\": \"fc.weight\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"head.biases\": \"fc.bias\""), std::string::npos) << text;
}

TEST_F(Load, ProposesNoRenamesBetweenDifferentModels) {
  // A bias agrees, but the weight beside it does not.
  std::vector<TensorSource> sources = tensors("");
  sources[3] = {"linear.weight", filled({10, 6}, 0)};
  sources[4] = {"linear.bias", filled({10}, 0)};
  write(sources);
  const std::string head = error_of(model_, std::vector{rule()});
  EXPECT_NE(head.find("2 missing, 2 unexpected"), std::string::npos) << head;
  EXPECT_EQ(head.find("rename:"), std::string::npos) << head;
  // A normalization of the same width among the layers of another model.
  write({{"h.0.ln.weight", filled({4}, 0)},
         {"h.0.ln.bias", filled({4}, 0)},
         {"h.0.attn.weight", filled({12, 4}, 0)},
         {"h.0.attn.bias", filled({12}, 0)},
         {"wte.weight", filled({20, 4}, 0)},
         {"wpe.weight", filled({8, 4}, 0)}});
  const std::string other = error_of(model_, std::vector{rule()});
  EXPECT_NE(other.find("0 tensors fit"), std::string::npos) << other;
  EXPECT_EQ(other.find("rename:"), std::string::npos) << other;
}

TEST_F(Load, NotStrictLeavesOutAndSaysSo) {
  std::vector<TensorSource> sources = tensors("");
  sources[4] = {"other", filled({3}, 0)};
  write(sources);
  EXPECT_NE(error_of(model_, std::vector{rule()}), "");
  LoadRule loose = rule();
  loose.strict = false;
  EXPECT_EQ(load_weights(model_, std::vector{loose}).tensors.size(), 4u);
  EXPECT_NE(log_.find("fc.bias"), std::string::npos) << log_;
  EXPECT_NE(log_.find("other"), std::string::npos) << log_;
  loose.rename = {{"", "x."}};
  EXPECT_NE(error_of(model_, std::vector{loose}).find("0 tensors fit"), std::string::npos) << "no match at all is always an error";
}

TEST_F(Load, PatternsThatMatchNothingAreRecipeErrors) {
  write(tensors(""));
  LoadRule bad = rule();
  bad.ignore = {"cf"};
  EXPECT_NE(error_of(model_, std::vector{bad}, ErrorCode::kRecipe).find("did you mean 'fc'"), std::string::npos);
  bad.ignore = {};
  bad.rename = {{"module.", ""}};
  EXPECT_NE(error_of(model_, std::vector{bad}, ErrorCode::kRecipe).find("'module.' matches no tensor"), std::string::npos);
  bad.rename = {{"bn1.weight", "bn1.bias"}};
  EXPECT_NE(error_of(model_, std::vector{bad}, ErrorCode::kRecipe).find("both become 'bn1.bias'"), std::string::npos);
  bad.rename = {};
  bad.into = "backbone";
  EXPECT_NE(error_of(model_, std::vector{bad}, ErrorCode::kRecipe).find("weights.into"), std::string::npos);
}

TEST_F(Load, DTypesChangeOnlyOnRequest) {
  const std::vector<ExpectedTensor> model{{"x", DType::kF32, {2}}};
  write({{"x", filled({2}, 0.1, DType::kF64)}});
  const std::string text = error_of(model, std::vector{rule()});
  EXPECT_NE(text.find("f32 [2]  f64 [2]"), std::string::npos) << text;
  EXPECT_NE(text.find("cast: true"), std::string::npos);
  LoadRule cast = rule();
  cast.cast = true;
  EXPECT_EQ(load_weights(model, std::vector{cast}).tensors.at("x").at({1}), static_cast<double>(0.1f));
  EXPECT_NE(log_.find("f64 to f32"), std::string::npos) << log_;
  write({{"x", filled({2}, 1e300, DType::kF64)}});
  EXPECT_NE(error_of(model, std::vector{cast}).find("2 values that f32 cannot represent"), std::string::npos);
  write({{"x", filled({2}, 1, DType::kI64)}});
  EXPECT_NE(error_of(model, std::vector{cast}).find("another dtype"), std::string::npos) << "integers never become weights";
}

TEST_F(Load, NonFiniteValuesAreRefusedByName) {
  const std::vector<ExpectedTensor> model{{"x", DType::kF32, {2, 3}}};
  Tensor values = filled({2, 3}, 1);
  values.set({1, 2}, std::numeric_limits<double>::quiet_NaN());
  write({{"x", values}});
  EXPECT_NE(error_of(model, std::vector{rule()}).find("'x' contains 1 value that is NaN or infinite, the first at [1,2]"),
            std::string::npos);
  LoadRule accept = rule();
  accept.check_finite = false;
  EXPECT_EQ(load_weights(model, std::vector{accept}).tensors.size(), 1u);
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16}) {
    Tensor tensor = filled({3}, 2, dtype);
    EXPECT_EQ(count_non_finite(tensor).count, 0);
    tensor.set({2}, -std::numeric_limits<double>::infinity());
    EXPECT_EQ(count_non_finite(tensor).count, 1);
    EXPECT_EQ(count_non_finite(tensor).first, 2);
  }
  EXPECT_EQ(count_non_finite(filled({3}, -1, DType::kI32)).count, 0);
}

TEST_F(Load, RunAndCheckpointFolders) {
  make_folders(folder_ / "run");
  EXPECT_NE(error_of(model_, std::vector{LoadRule{.from = folder_ / "run"}}).find("no weights.safetensors"), std::string::npos);
  CheckpointStore store(folder_ / "run/checkpoints", {});
  std::vector<TensorSource> parameters = tensors("");
  const std::vector<TensorSource> buffers{{"bn1.num_batches_tracked", filled(Shape{}, 3, DType::kI64)}};
  const std::string saved =
      store.save({.step = 5, .groups = {{"parameters", parameters}, {"buffers", buffers}, {"optimizer", {{"m", filled({1}, 1)}}}}});
  EXPECT_NE(error_of(model_, std::vector{LoadRule{.from = folder_ / "run"}}).find("weights=" + saved), std::string::npos)
      << "names the newest checkpoint";
  const LoadedWeights loaded = load_weights(model_, std::vector{LoadRule{.from = saved}});
  EXPECT_EQ(loaded.tensors.size(), 6u);
  EXPECT_EQ(loaded.tensors.at("bn1.num_batches_tracked").at(Shape{}), 3);
  write_safetensors(folder_ / "run/weights.safetensors", parameters, {});
  EXPECT_EQ(load_weights(model_, std::vector{LoadRule{.from = folder_ / "run"}}).tensors.size(), 5u);
  EXPECT_NE(error_of(model_, std::vector{LoadRule{.from = folder_ / "absent"}}).find("No such file"), std::string::npos);
}

TEST(Selects, GlobsAndModules) {
  EXPECT_TRUE(selects("fc", "fc.weight"));
  EXPECT_TRUE(selects("fc", "fc"));
  EXPECT_FALSE(selects("fc", "fc2.weight"));
  EXPECT_TRUE(selects("layer*.conv?", "layer1.0.conv2.weight"));
  EXPECT_TRUE(selects("*.bias", "a.b.bias"));
  EXPECT_FALSE(selects("*.bias", "bias"));
  EXPECT_TRUE(selects("*", "x"));
  EXPECT_TRUE(selects("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(selects("a*b*c", "aXbYbZ"));
}

}  // namespace
}  // namespace galley
