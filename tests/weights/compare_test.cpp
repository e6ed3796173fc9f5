// Laws: a difference counts exactly the elements that differ, measures them in float64, and lists tensors that only one file has with the
// renames that would match them; the mean is the float64 mean of floats, rounded once, and integers come from the last file.
#include "libcore/weights/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "libcore/base/error.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

Tensor vector_of(const std::vector<double>& values, DType dtype = DType::kF32) {
  Tensor tensor(dtype, {static_cast<int64_t>(values.size())});
  tensor.from_doubles(values);
  return tensor;
}

TEST(Compare, MeasuresWhatDiffers) {
  const TemporaryFolder folder;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  write_safetensors(
      folder / "a",
      std::vector<TensorSource>{
          {"same", vector_of({1, nan})}, {"w", vector_of({3, 4, 0})}, {"n", vector_of({1}, DType::kI64)}, {"s", vector_of({1})}},
      {});
  write_safetensors(folder / "b",
                    std::vector<TensorSource>{{"same", vector_of({1, nan})},
                                              {"w", vector_of({3, 4.5, -0.25}, DType::kF64)},
                                              {"n", vector_of({2}, DType::kI64)},
                                              {"s", vector_of({1, 2})}},
                    {});
  const WeightsFile a(folder / "a"), b(folder / "b");
  const WeightsDifference difference = compare_weights(a, b);
  ASSERT_EQ(difference.both.size(), 4u);
  std::map<std::string, TensorDifference> by_name;
  for (const TensorDifference& tensor : difference.both) by_name[tensor.name] = tensor;
  EXPECT_EQ(by_name["same"].different, 0) << "NaN equals NaN";
  EXPECT_EQ(by_name["same"].sqnr_db, std::numeric_limits<double>::infinity());
  EXPECT_EQ(by_name["w"].different, 2);
  EXPECT_EQ(by_name["w"].max_abs, 0.5);
  EXPECT_NEAR(by_name["w"].sqnr_db, 10 * std::log10(25.0 / 0.3125), 1e-12);
  EXPECT_EQ(by_name["n"].max_abs, 1);
  EXPECT_FALSE(by_name["s"].comparable);
  EXPECT_FALSE(difference.equal());
  EXPECT_TRUE(compare_weights(a, WeightsFile(folder / "a")).equal());

  write_safetensors(folder / "c", std::vector<TensorSource>{{"same", vector_of({1, 2})}}, {});
  EXPECT_TRUE(std::isnan(compare_weights(a, WeightsFile(folder / "c")).both.front().max_abs))
      << "NaN on one side differs from every number";
}

TEST(Compare, AlignsNames) {
  const TemporaryFolder folder;
  write_safetensors(
      folder / "a",
      std::vector<TensorSource>{{"conv.weight", vector_of({1, 2})}, {"conv.bias", vector_of({1})}, {"fc.weight", vector_of({1, 2, 3})}},
      {});
  write_safetensors(
      folder / "b",
      std::vector<TensorSource>{
          {"module.conv.weight", vector_of({1, 2})}, {"module.conv.bias", vector_of({5})}, {"extra", vector_of({1, 1, 1, 1})}},
      {});
  const WeightsFile a(folder / "a"), b(folder / "b");
  const WeightsDifference difference = compare_weights(a, b);
  EXPECT_EQ(difference.only_first.size(), 3u);
  EXPECT_EQ(difference.only_second.size(), 3u);
  ASSERT_EQ(difference.proposed, (std::vector<std::pair<std::string, std::string>>{{"module.", ""}}));
  const WeightsDifference aligned = compare_weights(a, b, difference.proposed);
  EXPECT_EQ(aligned.both.size(), 2u);
  EXPECT_EQ(aligned.only_first.size(), 1u);
  EXPECT_EQ(aligned.only_second.size(), 1u);
}

TEST(Average, IsTheMeanInFloat64) {
  const TemporaryFolder folder;
  // In f32, 1 + 2^-24 is 1: the float64 sum of three such pairs keeps what an f32 sum would lose.
  const double tiny = std::ldexp(1.0, -24);
  std::vector<WeightsFile> files;
  const std::vector<std::vector<double>> values{{1, 0.1f}, {tiny, 0.2f}, {tiny, 0.6f}, {tiny, 0.7f}};
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string path = folder / std::to_string(i);
    // The last file has another order.
    std::vector<TensorSource> tensors{{"w", vector_of(values[i])},
                                      {"count", vector_of({static_cast<double>(i)}, DType::kI64)},
                                      {"h", vector_of({static_cast<double>(i)}, DType::kBF16)}};
    if (i == 3) std::swap(tensors[0], tensors[2]);
    write_safetensors(path, tensors, {});
    files.emplace_back(path);
  }
  write_safetensors(folder / "mean", average_weights(files), {});
  const SafetensorsFile mean(folder / "mean");
  double sum = 0;
  for (const auto& each : values) sum += static_cast<double>(static_cast<float>(each[1]));
  EXPECT_EQ(mean.read("w").to_doubles(), (std::vector<double>{static_cast<float>((1 + 3 * tiny) / 4), static_cast<float>(sum / 4)}));
  EXPECT_NE(mean.read("w").to_doubles()[0], 0.25) << "summed in f32";
  EXPECT_EQ(mean.read("count").to_doubles(), std::vector<double>{3});
  EXPECT_EQ(mean.read("h").to_doubles(), std::vector<double>{1.5});
}

TEST(Average, RefusesWhatDoesNotBelongTogether) {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<TensorSource> second, const std::string& reason) {
    write_safetensors(folder / "a", std::vector<TensorSource>{{"w", vector_of({1, 2})}}, {});
    write_safetensors(folder / "b", second, {});
    std::vector<WeightsFile> files;
    files.emplace_back(folder / "a");
    files.emplace_back(folder / "b");
    try {
      write_safetensors(folder / "out", average_weights(files), {});
      ADD_FAILURE() << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_NE(error.text().find(reason), std::string::npos) << error.text();
    }
    EXPECT_FALSE(file_exists(folder / "out"));
  };
  refused({{"v", vector_of({1, 2})}}, "has no tensor 'w'");
  refused({{"w", vector_of({1, 2, 3})}}, "[3]");
  refused({{"w", vector_of({1, 2}, DType::kF64)}}, "F64");
  refused({{"w", vector_of({1, 2})}, {"x", vector_of({1})}}, "2 tensors");
  refused({{"w", vector_of({1, std::numeric_limits<double>::infinity()})}}, "NaN or infinite");
}

}  // namespace
}  // namespace galley
