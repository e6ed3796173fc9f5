// Laws: a written file reads back equal; every flipped byte and every truncation is detected; a well-formed file with inconsistent contents
// is rejected with the reason; nothing crashes.

#include "libcore/weights/calibration_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "libcore/base/file.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

Calibration sample() {
  Calibration calibration{
      .order = {"input", "layer1.0.conv2", "fc"}, .model = "m", .weights = {{"fc.weight", "w"}, {"fc.bias", "b"}}, .recipe = "recipe: 1\n"};
  for (int k = 0; k < 3; ++k) {
    for (const std::string& name : calibration.order) {
      std::vector<float> values;
      for (int i = 0; i < 500; ++i)
        values.push_back(name == "fc" ? 0.0f : static_cast<float>(std::sin(i * (k + 1))) * static_cast<float>(k + 1));
      calibration.values[name].add(values.data(), 5, 100, name);
    }
  }
  calibration.parts = {{.samples = 10, .batches = 2, .batch = 5, .first = 0, .source = "s", .data = "d", .recipe = "r"},
                       {.samples = 5, .batches = 1, .batch = 5, .first = 10, .source = "s", .data = "e", .recipe = "r"}};
  return calibration;
}

/// The error of reading; "" if there is none.
std::string refused_file(const std::string& path) {
  try {
    read_calibration(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.text();
    return error.text();
  }
  return "";
}

TEST(CalibrationFile, RoundTrip) {
  const TemporaryFolder folder;
  Calibration written = sample();
  written.inputs = {"input_ids.length", "token_type_ids"};
  write_calibration(folder / "a.calib", written);
  const Calibration read = read_calibration(folder / "a.calib");
  EXPECT_EQ(read.inputs, written.inputs);
  EXPECT_EQ(read.order, written.order);
  EXPECT_EQ(read.parts, written.parts);
  EXPECT_EQ(read.model, written.model);
  EXPECT_EQ(read.weights, written.weights);
  EXPECT_EQ(read.recipe, written.recipe);
  EXPECT_TRUE(read.values == written.values);
  // Statistics that were read back continue like the written ones.
  Calibration first = read, second = written;
  first.merge(written, "a");
  second.merge(read, "b");
  EXPECT_TRUE(first.values == second.values);
}

TEST(CalibrationFile, TrainedScalesComeBack) {
  const TemporaryFolder folder;
  Calibration written = sample();
  written.weight_bounds = {{"conv1.weight", Tensor::of({2}, {0.5f, 0.25f})}, {"fc.weight", Tensor::of({}, {3})}};
  write_calibration(folder / "a.calib", written);
  Calibration read = read_calibration(folder / "a.calib");
  ASSERT_EQ(read.weight_bounds.size(), 2u);
  EXPECT_EQ(read.bounds_of("conv1.weight")->to_doubles(), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(read.bounds_of("fc.weight")->shape(), Shape());
  EXPECT_EQ(read.bounds_of("fc.bias"), nullptr);
  EXPECT_THROW(read.merge(written, "a"), Error);
}

TEST(CalibrationFile, EveryDamageIsFound) {
  const TemporaryFolder folder;
  write_calibration(folder / "a.calib", sample());
  const std::string good = read_file(folder / "a.calib");
  std::mt19937 random(5);
  for (int i = 0; i < 160; ++i) {
    std::string damaged = good;
    // Header and values alike: most bytes are values.
    const size_t at = random() % (i % 2 == 0 ? good.size() : 2500);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    write_file(folder / "b.calib", damaged);
    EXPECT_NE(refused_file(folder / "b.calib"), "") << "byte " << at;
  }
  for (size_t size = 0; size < good.size(); size += 1 + good.size() / 60) {
    write_file(folder / "b.calib", good.substr(0, size));
    EXPECT_NE(refused_file(folder / "b.calib"), "") << size << " bytes";
  }
}

TEST(CalibrationFile, OtherFilesAreNoCalibration) {
  const TemporaryFolder folder;
  write_safetensors(folder / "w.safetensors", std::vector<TensorSource>{{"fc.weight", Tensor::of({2}, {1, 2})}}, {});
  EXPECT_NE(refused_file(folder / "w.safetensors").find("but not a calibration"), std::string::npos);
  EXPECT_NE(refused_file(folder / "nowhere.calib"), "");
}

/// A file with valid digests whose parts are changed by hand.
class Lies : public ::testing::Test {
 protected:
  void SetUp() override {
    Calibration good = sample();
    good.weight_bounds = {{"conv1.weight", Tensor::of({2}, {0.5f, 0.25f})}};
    write_calibration(folder / "good.calib", good);
    const SafetensorsFile file(folder / "good.calib");
    for (const SafetensorsEntry& entry : file.entries()) tensors.emplace(entry.name, file.read(entry).clone());
    for (const auto& [key, text] : file.metadata()) {
      if (!key.starts_with("galley.digest")) metadata[key] = text;
    }
  }
  std::string refused() {
    std::vector<TensorSource> sources;
    for (const auto& [name, tensor] : tensors) sources.emplace_back(name, tensor);
    write_safetensors(folder / "bad.calib", sources, metadata);
    return refused_file(folder / "bad.calib");
  }
  void replace(const std::string& from, const std::string& to) {
    std::string& text = metadata.at("galley.calibration");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, from.size(), to);
  }
  void expect(const std::string& reason) {
    const std::string text = refused();
    EXPECT_NE(text.find(reason), std::string::npos) << text;
  }

  const TemporaryFolder folder;
  std::map<std::string, Tensor> tensors;
  Metadata metadata;
};

TEST_F(Lies, UnchangedIsTaken) { EXPECT_EQ(refused(), ""); }
TEST_F(Lies, Json) {
  metadata["galley.calibration"] = "{\"version\":1";
  expect("is not a JSON object");
  metadata["galley.calibration"] = "[]";
  expect("is not a JSON object");
  metadata["galley.calibration"] = "{}";
  expect("has no 'version'");
  metadata["galley.calibration"] = std::string(100000, '[');
  expect("is not a JSON object");
}
TEST_F(Lies, Version) {
  replace("\"version\":2", "\"version\":3");
  expect("has version 3");
}
TEST_F(Lies, Bounds) {
  const Tensor good = tensors.at("conv1.weight.bounds");
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    tensors["conv1.weight.bounds"] = good.clone();
    tensors["conv1.weight.bounds"].data_as<float>()[1] = bad;
    expect("conv1.weight.bounds' has the value");
  }
  tensors["conv1.weight.bounds"] = Tensor(DType::kF32, {1, 2});
  expect("must be f32 [] or [channels]");
  tensors.erase("conv1.weight.bounds");
  expect("conv1.weight.bounds");
  replace("\"weight_bounds\":[\"conv1.weight\"]", "\"weight_bounds\":[1]");
  expect("'weight_bounds' has a repeated name or an item that is not a string");
}
TEST_F(Lies, NameTwice) {
  replace("\"fc\"", "\"input\"");
  expect("a repeated name");
}
TEST_F(Lies, NameOfNothing) {
  replace("\"fc\"", "\"fd\"");
  expect("fd.batches");
}
TEST_F(Lies, Counts) {
  replace("\"samples\":10", "\"samples\":-10");
  expect("'samples' is -10");
}
TEST_F(Lies, HugeCounts) {
  replace("\"samples\":10", "\"samples\":18446744073709551615");
  expect("'samples' is not a non-negative integer");
}
TEST_F(Lies, FractionalCounts) {
  replace("\"samples\":10", "\"samples\":1.5");
  expect("'samples' is not a non-negative integer");
}
TEST_F(Lies, Batches) {
  replace("\"batches\":2", "\"batches\":3");
  expect("have 3 batches, but the file has 4");
}
TEST_F(Lies, MissingTensor) {
  tensors.erase("fc.info");
  expect("fc.info");
}
TEST_F(Lies, DType) {
  tensors["fc.histogram"] = Tensor(DType::kF32, {4});
  expect("but must be i64 of rank 1");
}
TEST_F(Lies, Shapes) {
  tensors["fc.batches"] = Tensor(DType::kF32, {3, 3});
  expect("the statistics of fc have the shapes");
  tensors["fc.batches"] = Tensor(DType::kF32, {3, 2});
  tensors["fc.info"] = Tensor(DType::kI64, {4});
  expect("the statistics of fc have the shapes");
}
TEST_F(Lies, TooManyBins) {
  tensors["input.histogram"] = Tensor(DType::kI64, {9000});
  expect("a histogram has 9000 bins");
}
TEST_F(Lies, NegativeCount) {
  tensors["input.histogram"].data_as<int64_t>()[0] = -1;
  expect("counts -1 values in a bin");
}
TEST_F(Lies, Numbers) {
  const Tensor good = tensors.at("input.info");
  const std::vector<std::pair<int, int64_t>> changes{{0, 200},  {0, std::numeric_limits<int64_t>::min()},
                                                     {1, 8000}, {1, std::numeric_limits<int64_t>::min()},
                                                     {2, -1},   {2, 1 << 20},
                                                     {3, 0},    {3, -5},
                                                     {4, 0},    {4, -1}};
  for (const auto& [at, value] : changes) {
    tensors["input.info"] = good.clone();
    tensors["input.info"].data_as<int64_t>()[at] = value;
    const std::string text = refused();
    EXPECT_NE(text, "") << "info " << at << " = " << value;
    EXPECT_NE(text.find("of input"), std::string::npos) << text;
  }
}
TEST_F(Lies, Ranges) {
  tensors["input.batches"].data_as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  expect("a batch has the invalid range");
}

}  // namespace
}  // namespace galley
