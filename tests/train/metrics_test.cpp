// Laws: metrics are sums over samples whatever the batches, ranks count strictly higher scores, unknown names are refused with a near one.

#include "libcore/train/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace galley {
namespace {

Tensor labels_of(std::vector<int64_t> values) {
  Tensor labels(DType::kI64, Shape{static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), labels.data_as<int64_t>());
  return labels;
}

TEST(Metrics, CountsHandMadeRanks) {
  Metrics metrics({}, 6);
  // Sample 0: class 2 is best and true. Sample 1: the true class 0 has rank 5 (six classes): neither top1 nor top5.
  // Sample 2: the true class 3 is second.
  metrics.add(Tensor::of({3}, {0.5f, 2.0f, 1.0f}),
              Tensor::of({3, 6}, {0, 1, 9, 2, 3, 4, -1, 5, 4, 3, 2, 1, 7, 1, 2, 6, 3, 0}), labels_of({2, 0, 3}), 3);
  const MetricValues values = metrics.values();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_DOUBLE_EQ(find_metric(values, "loss"), 3.5 / 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "top1"), 100.0 / 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "top5"), 200.0 / 3);
}

TEST(Metrics, PaddedSamplesAndBatchSizesDoNotCount) {
  Metrics whole({"loss", "top1"}, 2), cut({"loss", "top1"}, 2);
  const Tensor losses = Tensor::of({4}, {1, 2, 3, 1e9f});
  const Tensor scores = Tensor::of({4, 2}, {1, 0, 0, 1, 1, 0, 1, 0});
  whole.add(losses, scores, labels_of({0, 0, 0, 0}), 3);
  cut.add(losses, scores, labels_of({0, 0, 0, 0}), 1);
  cut.add(Tensor::of({2}, {2, 3}), Tensor::of({2, 2}, {0, 1, 1, 0}), labels_of({0, 0}), 2);
  EXPECT_EQ(whole.values(), cut.values());
  EXPECT_EQ(whole.samples(), 3);
  EXPECT_NEAR(find_metric(whole.values(), "top1"), 66.667, 1e-3);
}

TEST(Metrics, ANaNScoreIsNeverRight) {
  Metrics metrics({"top1"}, 2);
  metrics.add(Tensor::of({1}, {0}), Tensor::of({1, 2}, {NAN, NAN}), labels_of({0}), 1);
  EXPECT_EQ(find_metric(metrics.values(), "top1"), 0);
}

TEST(Metrics, TokensCountNotSamples) {
  Metrics metrics({}, 2, true);
  const auto labels = [](const Shape& shape, const std::vector<int64_t>& values) {
    Tensor tensor(DType::kI64, shape);
    std::copy(values.begin(), values.end(), tensor.data_as<int64_t>());
    return tensor;
  };
  // Three tokens in a batch of two samples, the last of which is padding; then one token. The padding's losses are not read.
  metrics.add(Tensor::of({2, 3}, {1, 2, 4, 99, 99, 99}), Tensor::of({2, 3, 2}, {1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0}), labels({2, 3}, {0, 0, 0, -100, -100, -100}), 1);
  metrics.add(Tensor::of({1, 3}, {5, 99, 99}), Tensor::of({1, 3, 2}, {0, 1, 0, 0, 0, 0}), labels({1, 3}, {1, -100, -100}), 1);
  const MetricValues values = metrics.values();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_DOUBLE_EQ(find_metric(values, "loss"), 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "perplexity"), std::exp(3.0));
  EXPECT_DOUBLE_EQ(find_metric(values, "bits_per_char"), 3 / std::log(2.0));
  EXPECT_EQ(metrics.samples(), 2);
  Metrics ranks({"top1"}, 2, true);
  ranks.add(Tensor::of({1, 3}, {1, 2, 4}), Tensor::of({1, 3, 2}, {1, 0, 0, 1, 1, 0}), labels({1, 3}, {0, 0, -100}), 1);
  EXPECT_DOUBLE_EQ(find_metric(ranks.values(), "top1"), 50);
  EXPECT_FALSE(larger_is_better("perplexity"));
  EXPECT_FALSE(larger_is_better("bits_per_char"));
  EXPECT_THROW(Metrics({"perplexity"}, 10), Error) << "of a classifier";
}

TEST(Metrics, RefusesUnknownNamesAndNoSamples) {
  try {
    Metrics({"top_1"}, 10);
    FAIL() << "an unknown metric was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("did you mean top1?"), std::string::npos) << error.message();
  }
  EXPECT_THROW(Metrics({}, 10).values(), Error);
}

}  // namespace
}  // namespace galley
